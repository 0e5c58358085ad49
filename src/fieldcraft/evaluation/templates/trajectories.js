// Trajectory browser. Its state is the URL's fragment, as in #stage=rl2&filter=wrong&hops=3, so a
// view can be linked to and the back button works.
const PAGE = 50;
const tokenTexts = new Map();
let stageSlots = {};
let stageCommands = {};
let compareQuestion = () => {};

const unpack = async (packed) => {
  const bytes = Uint8Array.from(atob(packed), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const text = await new Response(stream).text();
  const records = [];
  let question = null;
  for (const line of text.split("\n").filter(Boolean)) {
    const part = JSON.parse(line);
    if (part.pieces) for (const [id, piece] of Object.entries(part.pieces)) tokenTexts.set(Number(id), piece);
    else if (part.question) question = part.question;
    else records.push({ ...part, question });
  }
  return records;
};

// Value of a record that each filter of the form compares.
const FACETS = {
  step: (record) => String(record.step ?? ""),
  stage: (record) => record.stage,
  filter: (record) => record.grade,
  split: (record) => record.question.split ?? "",
  hops: (record) => record.question.hops ?? "",
  calls: (record) => String(record.calls),
  status: (record) => record.status,
  known: (record) => String(record.question.known ?? ""),
};

const ORDERS = {
  calls: (a, b) => b.calls - a.calls,
  excess: (a, b) => excess(b) - excess(a),
  tokens: (a, b) => b.tokens - a.tokens,
  wrong: (a, b) => (a.grade === "wrong" ? 0 : 1) - (b.grade === "wrong" ? 0 : 1),
  right: (a, b) => (a.grade === "right" ? 0 : 1) - (b.grade === "right" ? 0 : 1),
};

const excess = ({ calls, question }) => calls - (question.optimum ?? calls);

const searchable = (record) => {
  record.text ??= [record.question.text, ...record.question.gold, record.answer ?? "", record.error,
    ...record.blocks.filter(([kind]) => kind !== "prompt").map(([, , text]) => text)].join("\n").toLowerCase();
  return record.text;
};

// Evaluations and training rollouts are never in the same list.
const kindOf = (records, wanted) => {
  const step = wanted.get("step") ?? "";
  return records.filter((record) => (record.step !== undefined) === (step !== ""));
};

const fitting = (records, wanted) => {
  const words = (wanted.get("text") ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  const chosen = Object.entries(FACETS).filter(([name]) => wanted.get(name))
    .filter(([name]) => name !== "step" || wanted.get(name) !== "all");
  const found = records.filter((record) =>
    chosen.every(([name, value]) => value(record) === wanted.get(name))
    && words.every((word) => searchable(record).includes(word)));
  const order = ORDERS[wanted.get("sort")] ?? (() => 0);
  return found.sort((a, b) => order(a, b) || a.number - b.number || a.step - b.step);
};

const fillChoices = (form, records) => {
  for (const name of ["split", "hops", "calls", "status", "step"]) {
    const values = [...new Set(records.map(FACETS[name]))].filter((value) => value !== "");
    values.sort((a, b) => a - b || a.localeCompare(b));
    for (const value of values) form.elements[name].add(new Option(name === "step" ? `step ${value}` : value, value));
    form.elements[name].parentElement.hidden = values.length < (name === "step" ? 1 : 2);
  }
  form.elements.known.parentElement.hidden = !records.some(({ question }) => question.known === true);
};

const browse = (section, records) => {
  const form = section.querySelector("form");
  const list = section.querySelector("#list");
  const more = section.querySelector("#more");
  const compared = section.querySelector("#compared");
  const state = () => new URLSearchParams(location.hash.slice(1));
  let found = [];

  const showMore = () => {
    const from = list.children.length;
    list.append(...found.slice(from, from + PAGE).map(cardElement));
    const left = found.length - list.children.length;
    more.hidden = left === 0;
    more.textContent = `Show ${Math.min(PAGE, left)} more of ${left.toLocaleString("en")}`;
    return list.children[from];
  };

  const compare = (id) => {
    const ids = [...new Set(found.map(({ question }) => question.id))];
    const step = (by) => ids[(ids.indexOf(id) + by + ids.length) % ids.length];
    const records_ = kindOf(records, state()).filter(({ question }) => question.id === id);
    const button = (text, action) => make("button", { type: "button", onclick: action }, text);
    compared.replaceChildren(
      make("p", { class: "actions" },
        button("Back to the list", () => go({ question: "" })),
        button("Previous question", () => compareQuestion(step(-1))),
        button("Next question", () => compareQuestion(step(1)))),
      make("h3", { class: "asked" }, records_[0]?.question.text ?? "This question is not on this page."),
      make("div", { class: "columns" }, ...records_.map(columnElement)));
    compared.focus({ preventScroll: true });
  };

  const apply = () => {
    const wanted = state();
    for (const { name } of form.elements) if (name) form.elements[name].value = wanted.get(name) ?? "";
    const all = kindOf(records, wanted);
    found = fitting(all, wanted);
    form.querySelector("output").value = `${found.length.toLocaleString("en")} of ${all.length.toLocaleString("en")}`;
    list.replaceChildren();
    const first = showMore();
    if (first && !wanted.get("text")) first.open = true;
    const question = wanted.get("question");
    compared.hidden = !question;
    list.hidden = Boolean(question);
    more.hidden ||= Boolean(question);
    if (question) compare(question);
  };

  const address = (changes) => {
    const wanted = state();
    for (const [name, value] of Object.entries(changes)) {
      if (value) wanted.set(name, value);
      else wanted.delete(name);
    }
    return `#${String(wanted) || "all="}`;
  };
  const go = (changes) => { location.hash = address(changes); };
  compareQuestion = (id) => go({ question: id });

  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", (event) => {
    const changes = { [event.target.name]: event.target.value, question: "" };
    if (event.target.name !== "text") return go(changes);
    return location.replace(address(changes)); // typing adds no history entries
  });
  form.addEventListener("reset", (event) => {
    event.preventDefault();
    location.hash = "#all=";
  });
  more.addEventListener("click", () => showMore()?.querySelector("summary").focus());
  // Fragments without "=" are anchors of the page, such as a term.
  addEventListener("hashchange", () => location.hash.includes("=") && apply());

  fillChoices(form, records);
  if (!location.hash && form.dataset.first) location.replace(address({ stage: form.dataset.first }));
  form.hidden = false;
  apply();
};

const trajectories = document.querySelector("#trajectories");
if (trajectories) {
  stageSlots = JSON.parse(trajectories.dataset.slots);
  stageCommands = JSON.parse(trajectories.dataset.commands);
  unpack(document.querySelector("#packed").textContent).then((records) => browse(trajectories, records));
}

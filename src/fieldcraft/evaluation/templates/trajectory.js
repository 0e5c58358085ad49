// One trajectory: its line in the list, and its details.
const MARKS = { right: "✓", wrong: "✗", ungraded: "?" };
const TAG = /(<\/?[|｜]?[A-Za-z][\w.:-]*[|｜]?>)/;

const stageDot = (stage) => {
  const dot = make("i", { class: "dot" });
  dot.style.setProperty("--c", `var(--stage${stageSlots[stage]})`);
  return dot;
};

const withTags = (text) =>
  text.split(TAG).map((piece, place) => (place % 2 ? make("i", {}, piece) : piece));

const callsText = ({ calls, question }) =>
  typeof question.optimum === "number" ? `${calls} / ${question.optimum} calls` : `${calls} calls`;

const badges = (record) => {
  const { question } = record;
  const over = typeof question.optimum === "number" && record.calls > question.optimum;
  const badge = (text, attributes = {}) => make("span", attributes, text);
  return make("span", { class: "badges" },
    make("span", {}, stageDot(record.stage), record.stage),
    question.hops ? badge(`hops ${question.hops}`) : null,
    question.split ? badge(question.split) : null,
    question.known === true ? badge("known") : null,
    record.step === undefined ? null : badge(`training step ${record.step}`),
    record.folds ? badge(`${record.folds} folds`) : null,
    badge(callsText(record), { title: "executed / optimum", class: over ? "over" : false }),
    record.status === "answered" ? null : badge(record.status, { class: "over" }));
};

const blockElement = ([kind, label, text, dropped]) => {
  const rest = dropped ? [make("em", {}, ` … ${dropped} more characters`)] : [];
  if (kind === "prompt") {
    const title = label ? `folded: ${label}` : "prompt";
    return make("details", { class: `block k-prompt${label ? " fold" : ""}` }, make("summary", {}, title), make("pre", {}, text, ...rest));
  }
  const simulated = label.includes("simulated") ? " simulated" : "";
  return make("div", { class: `block k-${kind}${simulated}` },
    make("h4", {}, kind, label ? make("small", {}, label) : null),
    make("pre", {}, ...withTags(text), ...rest));
};

// One number if all trained tokens have the same advantage, as without a critic; else the range.
const advantageOf = ({ segments = [] }) => {
  const found = segments.flatMap(({ advantages = [] }) => advantages);
  const [low, high] = [Math.min(...found), Math.max(...found)].map((value) => signed(value, 3));
  return found.length ? (low === high ? low : `${low} to ${high}`) : "";
};

const fields = (record) => {
  const field = (name, value, kind = false) =>
    make("div", {}, make("dt", {}, name), make("dd", { class: kind }, String(value)));
  const rewards = Object.entries(record.rewards)
    .map(([name, value]) => field(name, value === null ? "–" : Number(value.toFixed(3))));
  return make("dl", {},
    field("gold", record.question.gold.join(" | "), "gold"),
    field("answer", record.answer ?? "none", record.grade),
    field("calls", callsText(record).replace(" calls", "")),
    field("tokens", record.tokens),
    ...rewards,
    advantageOf(record) ? field("advantage", advantageOf(record)) : null,
    record.error ? field("error", record.error) : null);
};

const onOpen = (details, fill) => {
  const once = () => {
    if (!details.open) return;
    details.removeEventListener("toggle", once);
    details.append(...fill());
  };
  details.addEventListener("toggle", once);
  return details;
};

// All details below the line of a trajectory.
const contents = (record) => {
  const parts = [...record.blocks.map(blockElement), fields(record)];
  if (record.segments?.length) {
    const tokens = make("details", { class: "block tokens-of" }, make("summary", {}, "tokens and loss mask"));
    parts.push(onOpen(tokens, () => [tokenView(record.segments)]));
  }
  const place = record.step === undefined
    ? `${stageCommands[record.stage] ?? `fieldcraft show . --stage ${record.stage}`} --index ${record.number}`
    : `${record.stage}/rollouts/${String(record.step).padStart(6, "0")}.jsonl`;
  parts.push(make("p", { class: "actions" }, make("code", { title: "in the run folder" }, place)));
  return parts;
};

const compareButton = ({ question, step }) =>
  make("p", { class: "actions" },
    make("button", { type: "button", onclick: () => compareQuestion(question.id) },
      step === undefined ? "All stages on this question" : "All training rollouts of this question"));

const cardElement = (record) => {
  const card = make("details", {
    class: `card trajectory ${record.grade}`,
    "data-stage": record.stage,
    "data-grade": record.grade,
    "data-hops": record.question.hops ?? "",
  }, make("summary", {},
    make("span", { class: "mark", title: record.grade }, MARKS[record.grade]),
    make("span", { class: "question" }, record.question.text),
    badges(record)));
  return onOpen(card, () => [...contents(record), compareButton(record)]);
};

// A trajectory without a line that opens it, for a column among several.
const columnElement = (record) =>
  make("article", { class: `card trajectory ${record.grade}`, "data-stage": record.stage, "data-grade": record.grade },
    make("h3", {}, make("span", { class: "mark", title: record.grade }, MARKS[record.grade]), " ", badges(record)),
    ...contents(record));

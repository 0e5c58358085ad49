// A trajectory as token ids of the model: tokens, their authors, the loss mask, and the
// log-probabilities of sampled tokens. Trained tokens can be distinguished without colour: by the
// title of their segment, by brackets and by an underline.
const pieceOf = (id) => tokenTexts.get(id) ?? `<${id}>`;

const signed = (value, digits) => `${value < 0 ? "−" : "+"}${Number(Math.abs(value).toFixed(digits))}`;

const tokenElement = (id, logprob, advantage) => {
  const known = typeof logprob === "number";
  const credited = typeof advantage === "number";
  const told = known ? ` · log-probability ${logprob} · probability ${Math.exp(logprob).toPrecision(3)}` : "";
  const credit = credited ? ` · advantage ${advantage}` : "";
  const token = make("span", { class: "token", title: `token ${id}${told}${credit}` },
    make("span", { class: "piece" }, pieceOf(id).replaceAll("\n", "⏎") || "∅"));
  if (known) {
    token.style.setProperty("--doubt", 1 - Math.exp(logprob));
    token.append(make("small", {}, logprob > -0.005 ? "0" : logprob.toFixed(2).replace("-", "−")));
  }
  if (credited) token.append(make("small", { class: advantage < 0 ? "advantage worse" : "advantage" }, signed(advantage, 2)));
  return token;
};

const segmentElement = ({ author, trained, ids, more, begins, logprobs = [], advantages = [] }) => {
  const line = make("p", { class: "tokens" });
  if (trained) line.append(make("b", { class: "bracket" }, "["));
  ids.forEach((id, place) => {
    line.append(tokenElement(id, logprobs[place], advantages[place]));
    if (pieceOf(id).endsWith("\n")) line.append(make("br"));
  });
  if (more) line.append(make("em", {}, ` … ${more} more tokens`));
  if (trained) line.append(make("b", { class: "bracket" }, "]"));
  const title = `${begins ? "new chain: " : ""}${author}, ${trained ? "trained" : "not trained"}`;
  return make("div", { class: `segment ${trained ? "trained" : "masked"}${begins ? " fold" : ""}` }, make("h4", {}, title), line);
};

const tokenView = (segments) => {
  const count = (parts) => parts.reduce((sum, part) => sum + part.ids.length + part.more, 0);
  const trained = segments.filter((part) => part.trained);
  const view = make("div", { class: "token-view" });
  const toggle = (name, text) => {
    const box = make("input", { type: "checkbox", name, onchange: () => view.classList.toggle(name, box.checked) });
    return make("label", {}, box, ` ${text}`);
  };
  const credited = segments.some(({ advantages = [] }) => advantages.length);
  view.append(
    make("p", { class: "intro" }, `${count(trained)} of ${count(segments)} tokens carry loss in this stage: the underlined ones in [brackets].`),
    toggle("likelihoods", "log-probability of every sampled token, in nats; unlikely tokens are shaded"),
    ...(credited ? [toggle("advantages", "advantage of every trained token, as used in its step")] : []),
    ...segments.map(segmentElement),
  );
  return view;
};

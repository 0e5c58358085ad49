// The data of a report, which has no server: the requests of api.js, answered from `window.RUN`.

import { FILTERS } from "./state.js";

const IDEOGRAPHS = "\\u3040-\\u30ff\\u3400-\\u9fff\\u{20000}-\\u{3ffff}";
const SPACELESS = "\\u0e00-\\u0eff\\u1000-\\u109f\\ua9e0-\\ua9ff\\uaa60-\\uaa7f\\u1780-\\u17ff"; // Thai, Lao, Burmese, Khmer
const LETTER = "[\\p{L}\\p{N}\\p{M}]";
const RUN = new RegExp(`^[${SPACELESS}]`, "u");
const WORD = new RegExp(`[${IDEOGRAPHS}]|(?:(?=${LETTER})[${SPACELESS}])+|(?:(?![${IDEOGRAPHS}${SPACELESS}])${LETTER})+`, "gu");
const UNFILTERED = ["q", "sort", "offset", "limit"]; // keys of a request that are no columns
let records; // trajectories, undefined until they are unpacked
let told = () => {};

const { trajectories, parts = [] } = globalThis.RUN;
const unpacked = (trajectories ? unpack(trajectories) : Promise.resolve([])).then((found) => {
  records = found;
  told();
});

async function unpack(packed) {
  const bytes = Uint8Array.from(atob(packed), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const lines = (await new Response(stream).text()).split("\n").filter(Boolean).map((line) => JSON.parse(line));
  const pieces = Object.assign({}, ...lines.map((line) => line.pieces ?? {}));
  const found = lines.filter((line) => !line.pieces);
  for (const { segments } of found) for (const segment of segments) segment.pieces = segment.ids.map((id) => pieces[id]);
  const order = new Map(parts.map((part, place) => [part, place]));
  const place = ({ part, kind, step, number }) => [order.get(part), kind === "training" ? 0 : 1, step ?? 0, number];
  return found.sort((a, b) => compare(place(a), place(b)));
}

const compare = (a, b) => a.reduce((found, value, at) => found || value - b[at], 0);

const ANSWERS = {
  "api/rows": ({ offset, limit, ...query }) => {
    const found = find(query);
    return { total: found.length, revision: 1, rows: found.slice(offset, offset + limit) };
  },
  "api/values": () => Object.fromEntries(FILTERS.map((name) => [name, distinct(name)])),
  "api/trajectory": (query) => ({ tokenizer: true, ...one(find(query)) }),
  "api/question": (query) => ({ rollouts: find(query), left: 0 }),
};

export async function ask(path, parameters = {}) {
  await unpacked;
  return ANSWERS[path](parameters);
}

export function load(path, parameters = {}) {
  if (!records) return {};
  try {
    return { value: ANSWERS[path](parameters) };
  } catch (error) {
    return { error: error.message };
  }
}

export function whenLoaded(listener) {
  told = listener;
}

function one(found) {
  if (found.length !== 1) throw new Error("This trajectory is not in the page: go back, and open one from the list.");
  return found[0];
}

/** The text of a value in an address. */
const text = (value) => (value === null || value === undefined ? "none" : String(typeof value === "boolean" ? Number(value) : value));

function distinct(name) {
  const values = new Map(records.map((record) => [text(record[name]), record[name] ?? null]));
  const numeric = (value) => (typeof value === "boolean" ? Number(value) : value);
  const known = [...values.values()].filter((value) => value !== null).map(numeric);
  if (["part", "kind", "run"].includes(name)) return known;
  known.sort((a, b) => a - b || String(a).localeCompare(String(b)));
  return values.has("none") ? [null, ...known] : known;
}

function find({ q = "", sort = "", ...query }) {
  const filters = Object.entries(query).filter(([name]) => !UNFILTERED.includes(name));
  const terms = searchTerms(q);
  const found = records.filter((record) =>
    filters.every(([name, value]) => text(record[name]) === value) && terms.every((term) => words(record).includes(term)));
  if (!sort) return found;
  const [name, by] = sort.startsWith("-") ? [sort.slice(1), -1] : [sort, 1];
  const known = found.filter((record) => (record[name] ?? null) !== null);
  const unknown = found.filter((record) => (record[name] ?? null) === null);
  const order = ([a, b]) => (a < b ? -by : a > b ? by : 0);
  return [...known.sort((a, b) => order([a[name], b[name]])), ...unknown];
}

/** The terms of a search, as in queries.py: a phrase in quotes; the last word may be incomplete. */
function searchTerms(q) {
  const found = [...q.matchAll(/"([^"]*)"|(\S+)/g)];
  const terms = found.map(([, phrase, word]) => normalise((phrase ?? word).replaceAll('"', "")));
  if (found.at(-1)?.[2]) terms[terms.length - 1] = terms.at(-1).trimEnd();
  return terms.filter((term) => term.trim());
}

/** The words of a text, as in records/words.py: each ideograph or kana is a word, and a run of a script without spaces is
 * split into overlapping pairs of signs. */
const normalise = (value) => {
  const bare = value.normalize("NFKD").replace(/[\u0300-\u036f]/g, "").normalize("NFKC").toLowerCase();
  return ` ${(bare.match(WORD) ?? []).flatMap((word) => (RUN.test(word) ? pairs(word) : word)).join(" ")} `;
};

function pairs(run) {
  const signs = run.match(/\p{M}*.\p{M}*/gsu);
  return signs.length < 3 ? [run] : signs.slice(1).map((sign, place) => signs[place] + sign);
}

function words(record) {
  record.words ??= normalise([record.question, record.answer ?? "", ...record.transcript.map((block) => block.text)].join("\n"));
  return record.words;
}

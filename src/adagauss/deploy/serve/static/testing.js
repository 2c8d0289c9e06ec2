// Accuracy and confusion matrix of a folder of class folders that were not taught, computed from predictions.
import { button, element } from "./answers.js";
import { post } from "./api.js";
import { clean } from "./classes.js";
import { attempt } from "./dialogs.js";
import { choosable, droppable, pictures } from "./files.js";

const TOGETHER = 32; // pictures per request

const part = (name) => document.getElementById(name);
let model = { version: -1, classes: [] };
let folders = []; // [{folder, files}], so that the same pictures can be tested again
let tested = -1; // version of the model in the last test
let stopped = false;

export function setup() {
  const take = (found) => attempt(async () => {
    folders = await found;
    await test();
  });
  choosable(part("test-files"), take);
  droppable(part("test"), take);
  part("test-stop").addEventListener("click", () => (stopped = true));
  part("test-again").addEventListener("click", () => attempt(test));
}

export function show(now) {
  model = now;
  part("test").hidden = !model.classes.length;
  part("test-again").hidden = tested < 0 || tested === model.version;
}

async function test() {
  const known = model.classes.map((one) => one.label);
  const isClass = ({ folder }) => known.includes(clean(folder));
  const notes = folders.filter((one) => !isClass(one)).map((one) => `“${one.folder || "files outside of a folder"}”`);
  const sent = [];
  for (const { folder, files } of folders.filter(isClass)) {
    for (const file of await pictures(files)) sent.push({ file, label: clean(folder) });
  }
  if (!sent.length) throw new Error("The test needs a folder of class folders: each with the name of a class and pictures of it.");
  const answers = await predictions(sent);
  if (answers) render(summary(sent, answers, known), notes);
}

// The predictions for all pictures, by one version of the model; null if stopped.
async function predictions(sent) {
  const found = [];
  stopped = false;
  part("test-progress").hidden = false;
  try {
    for (let start = 0; start < sent.length; start += TOGETHER) {
      part("test-bar").value = start / sent.length;
      const form = new FormData();
      for (const { file } of sent.slice(start, start + TOGETHER)) form.append("pictures", file);
      const answer = await post("/api/predict?top=1", form);
      if (stopped) return null;
      if (start && answer.version !== tested) throw new Error("The model was changed during the test: test again.");
      tested = answer.version;
      found.push(...answer.predictions);
    }
  } finally {
    part("test-progress").hidden = true;
  }
  return found;
}

// Counts pictures: matrix[label][predicted label].
function summary(sent, answers, known) {
  const matrix = new Map();
  const unread = [];
  for (const [place, { file, label }] of sent.entries()) {
    const { label: predicted, problem } = answers[place];
    if (problem) unread.push(`${file.name} (${problem})`);
    else {
      const row = matrix.get(label) ?? matrix.set(label, new Map()).get(label);
      row.set(predicted, (row.get(predicted) ?? 0) + 1);
    }
  }
  return { matrix, unread, known };
}

const sum = (numbers) => [...numbers].reduce((total, one) => total + one, 0);
const percent = (share) => `${(100 * share).toFixed(1)} %`;

function render({ matrix, unread, known }, notes) {
  const right = sum([...matrix].map(([label, row]) => row.get(label) ?? 0));
  const all = sum([...matrix.values()].flatMap((row) => [...row.values()]));
  if (!all) throw new Error(`No picture of the folder could be read: ${unread[0]}`);
  const lines = [element("p", "accuracy", `Accuracy ${percent(right / all)}`)];
  lines.push(element("p", "quiet", `${right} of ${all} pictures, ${matrix.size} of ${known.length} classes`));
  if (notes.length) lines.push(element("p", "quiet", `Left out, because the model has no such class: ${notes.join(", ")}`));
  if (unread.length) lines.push(element("p", "quiet", `${unread.length} could not be read: ${unread[0]}`));
  part("test-result").replaceChildren(...lines);
  part("test-matrix").replaceChildren(table(matrix, known));
  part("test-matrix").hidden = false;
  show(model);
}

function table(matrix, known) {
  const made = element("table", "");
  made.append(element("caption", "quiet small-text", "Confusion matrix: rows are folders, columns are predictions"));
  const head = made.createTHead().insertRow();
  head.append(...["Folder", "Accuracy", ...known].map((label) => header("col", label)));
  const body = made.createTBody();
  for (const label of known.filter((one) => matrix.has(one))) {
    const row = matrix.get(label);
    const all = sum(row.values());
    const line = body.insertRow();
    line.append(header("row", label), element("td", "share", percent((row.get(label) ?? 0) / all)));
    for (const predicted of known) line.append(cell(row.get(predicted) ?? 0, all, predicted === label));
  }
  return made;
}

function header(scope, label) {
  const made = element("th", "");
  made.scope = scope;
  made.append(element("span", "", label));
  made.title = label;
  return made;
}

function cell(count, all, isRight) {
  const made = element("td", isRight ? "right" : "wrong", count || "·");
  made.style.setProperty("--share", `${Math.round((100 * count) / all)}%`);
  return made;
}

// Classifies pictures and shows the probabilities; repeated when the model changes.
import { post } from "./api.js";
import { tone } from "./classes.js";
import { attempt, say } from "./dialogs.js";
import { droppable, isPicture, thumbnail } from "./files.js";

const MOST = 60;
const part = (name) => document.getElementById(name);
let pictures = []; // {file, canvas}
let version = -1;
let taught = false;

export function setup() {
  const take = (files) => attempt(() => add([...files].filter(isPicture)));
  part("preview-files").addEventListener("change", (event) => {
    take([...event.target.files]);
    event.target.value = "";
  });
  droppable(part("preview"), take);
  document.addEventListener("paste", (event) => event.clipboardData.files.length && take(event.clipboardData.files));
  part("unknown").addEventListener("change", () => attempt(classify));
  part("clear").addEventListener("click", () => {
    pictures = [];
    render([]);
  });
}

export function show(model) {
  taught = model.classes.length > 0;
  const renewed = model.version !== version;
  version = model.version;
  if (renewed && pictures.length) attempt(classify);
}

async function add(files) {
  if (!taught) return say("Teach some classes first.");
  const fresh = await Promise.all(files.slice(0, MOST).map(async (file) => ({ file, canvas: await thumbnail(file) })));
  pictures = [...fresh, ...pictures].slice(0, MOST);
  await classify();
}

async function classify() {
  if (!pictures.length || !taught) return render([]);
  const sent = pictures;
  const form = new FormData();
  for (const picture of sent) form.append("pictures", picture.file);
  const unknown = part("unknown").value;
  const top = sent.length === 1 ? 5 : 3;
  const answer = await post(`/api/predict?top=${top}${unknown ? `&unknown=${unknown}` : ""}`, form);
  if (sent === pictures) render(answer.predictions);
}

function render(predictions) {
  part("clear").hidden = !pictures.length;
  part("results").replaceChildren(...predictions.map((one, place) => result(one, pictures[place])));
}

function result(prediction, picture) {
  const box = element("div", "answer");
  box.classList.toggle("single", pictures.length === 1);
  const text = element("div", prediction.unknown ? "muted" : "");
  const verdict = element("div", "verdict");
  verdict.classList.add(prediction.label === null ? "tone-none" : tone(prediction.label));
  const verdictText = prediction.problem ? "Unreadable" : prediction.unknown ? "Unknown" : prediction.label;
  verdict.append(element("b", "", verdictText), element("span", "file-name", picture.file.name));
  text.append(verdict, ...prediction.top.map(bar));
  if (prediction.problem) text.append(element("p", "quiet small-text", prediction.problem));
  box.append(picture.canvas, text);
  return box;
}

function bar({ label, probability }) {
  const row = element("div", `bar-row ${tone(label)}`);
  const name = element("span", "label", label);
  name.title = label;
  const track = element("div", "bar");
  const fill = element("div", "fill");
  const percent = element("span", "percent", `${Math.round(100 * probability)} %`);
  track.append(fill);
  row.append(name, track, percent);
  requestAnimationFrame(() => (fill.style.width = `${100 * probability}%`));
  return row;
}

function element(kind, classes, text = "") {
  const made = document.createElement(kind);
  made.className = classes;
  made.textContent = text;
  return made;
}

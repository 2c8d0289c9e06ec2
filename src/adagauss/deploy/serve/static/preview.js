// Classifies pictures and shows the probabilities; repeated when the model changes.
import { answer, button, element } from "./answers.js";
import { post } from "./api.js";
import { correct, isWaiting } from "./classes.js";
import { attempt, say } from "./dialogs.js";
import { choosable, droppable, pictures, shown } from "./files.js";

const MOST = 60;
const part = (name) => document.getElementById(name);
let items = []; // pictures made by shown(); `corrected` is the class that the user named
let model = { version: -1, classes: [], cannot: {} };

export function setup() {
  const take = (found) => attempt(async () => add((await found).flatMap((one) => one.files)));
  choosable(part("preview-files"), take);
  droppable(part("preview"), take);
  document.addEventListener("paste", (event) => {
    const files = [...event.clipboardData.files];
    if (files.length) attempt(() => add(files));
  });
  part("unknown").addEventListener("change", () => attempt(classify));
  part("clear").addEventListener("click", () => {
    items = [];
    render([]);
  });
}

export function show(now) {
  const renewed = now.version !== model.version;
  model = now;
  if (renewed) attempt(classify);
}

// The options of a request, after the number of classes to return.
export function query(top) {
  const unknown = part("unknown").value;
  return `top=${top}${unknown ? `&unknown=${unknown}` : ""}`;
}

export async function add(files) {
  if (!model.classes.length) return say("Teach some classes first.");
  const fresh = await pictures(files);
  if (fresh.length > MOST) say(`Only the first ${MOST} pictures are shown. A test folder takes any number.`);
  items = [...fresh.map(shown), ...items].slice(0, MOST);
  await classify();
}

async function classify() {
  if (!items.length || !model.classes.length) return render([]);
  const sent = items;
  const form = new FormData();
  for (const item of sent) form.append("pictures", item.file);
  const { predictions, warning } = await post(`/api/predict?${query(sent.length === 1 ? 5 : 3)}`, form);
  if (warning) say(warning);
  if (sent === items) render(predictions);
}

function render(predictions) {
  part("clear").hidden = !items.length;
  part("results").replaceChildren(...predictions.map((one, place) => result(one, items[place])));
}

function result(prediction, item) {
  const box = element("div", "answer");
  box.classList.toggle("single", items.length === 1);
  const text = answer(prediction, item.file.name);
  if (item.corrected && isWaiting(item.file)) text.append(queued(item.corrected));
  else if (!prediction.problem && !model.cannot["teach more"]) text.append(correction(prediction, item));
  box.append(item.canvas, text);
  item.draw();
  return box;
}

const queued = (label) => element("p", "queued small-text", `Waits to be taught as ${label}.`);

function correction(prediction, item) {
  const made = button(prediction.unknown ? "It is …" : "That was wrong: it is …", async () => {
    item.corrected = await correct(item.file);
    if (item.corrected) made.replaceWith(queued(item.corrected));
  });
  return made;
}

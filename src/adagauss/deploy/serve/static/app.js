// Polls the model and updates all parts of the page.
import { get } from "./api.js";
import * as classes from "./classes.js";
import * as files from "./files.js";
import * as past from "./past.js";
import * as preview from "./preview.js";
import * as teaching from "./teaching.js";
import * as testing from "./testing.js";
import * as use from "./use.js";
import * as webcam from "./webcam.js";

const EVERY = 4000; // polling interval in milliseconds
let model = { name: "", version: -1, formats: [], classes: [], cannot: {}, can_undo: null, job: null };

function changed(what) {
  if (what === "model") refresh();
  else teaching.show(model);
}

async function refresh() {
  let now;
  try {
    now = await get("/api/model");
  } catch (error) {
    document.getElementById("model-facts").textContent = error.message;
    return;
  }
  const renewed = now.version !== model.version;
  model = now;
  document.title = `${model.name} · adagauss`;
  document.getElementById("model-name").textContent = model.name;
  document.getElementById("model-facts").textContent = facts();
  document.body.classList.toggle("taught", model.classes.length > 0);
  files.show(model);
  if (renewed) classes.show(model);
  for (const part of [teaching, preview, webcam, testing, use]) part.show(model);
  past.show(model).catch(() => {});
}

function facts() {
  if (!model.classes.length) return "No classes yet";
  const pictures = model.classes.reduce((sum, one) => sum + one.images, 0);
  return `${model.classes.length} ${model.classes.length === 1 ? "class" : "classes"}, ${pictures} training pictures`;
}

for (const part of [classes, teaching, past]) part.setup(changed);
for (const part of [preview, webcam, testing, use]) part.setup();
refresh();
setInterval(() => document.visibilityState === "visible" && refresh(), EVERY);

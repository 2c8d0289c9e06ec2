// History, undo and downloads.
import { download, follow, get, post } from "./api.js";
import { ask, attempt } from "./dialogs.js";

const part = (name) => document.getElementById(name);
const KINDS = { teach: "taught", forget: "forgot", rename: "renamed", undo: "undo", found: "found" };
let changed = () => {};
let info = null;
let version = -1;

export function setup(onChange) {
  changed = onChange;
  part("undo").addEventListener("click", undo);
  part("download-model").addEventListener("click", fetchFile);
}

export async function show(model) {
  info = model;
  part("undo").disabled = !model.can_undo;
  part("undo").title = model.can_undo ? `Undo ${model.can_undo}` : "Nothing to undo";
  part("download-model").disabled = !model.classes.length;
  if (model.version !== version) {
    version = model.version;
    const changes = await get("/api/history");
    part("past").hidden = !changes.length;
    part("history").replaceChildren(...changes.map(line));
  }
}

function line(change) {
  const item = document.createElement("li");
  const when = document.createElement("time");
  when.dateTime = change.time;
  when.textContent = new Date(change.time).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
  when.className = "quiet";
  const kind = document.createElement("span");
  kind.className = "kind";
  kind.textContent = KINDS[change.action];
  const what = document.createElement("span");
  what.className = change.undone ? "what undone" : "what";
  what.textContent = change.summary;
  item.append(when, kind, what);
  return item;
}

async function undo() {
  const answer = await ask({ title: "Undo the last change?", text: info.can_undo, yes: "Undo" });
  if (!answer) return;
  await attempt(async () => follow(await post("/api/undo")));
  changed("model");
}

async function fetchFile() {
  part("download-model").disabled = true;
  await attempt(() => download("/api/download/model", `${info.name}.safetensors`));
  show(info);
}

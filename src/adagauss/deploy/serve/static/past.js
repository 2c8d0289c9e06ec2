// History and undo.
import { follow, get, post } from "./api.js";
import { ask, attempt } from "./dialogs.js";

const part = (name) => document.getElementById(name);
const KINDS = { teach: "taught", forget: "forgot", rename: "renamed", undo: "undid", found: "found" };
let changed = () => {};
let info = null;
let version = -1;

export function setup(onChange) {
  changed = onChange;
  part("undo").addEventListener("click", undo);
}

export async function show(model) {
  info = model;
  part("undo").disabled = !model.can_undo;
  part("undo").title = model.can_undo ? `Undo ${model.can_undo}` : "Nothing to undo";
  if (model.version !== version) {
    version = model.version;
    const changes = await get("/api/history");
    part("past").hidden = !changes.length;
    part("history").replaceChildren(...changes.map((change) => line(change, changes)));
  }
}

function line(change, changes) {
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
  const reverted = changes.find((one) => one.number === change.undoes);
  what.textContent = reverted ? `${KINDS[reverted.action]}: ${reverted.summary}` : change.summary;
  item.append(when, kind, what);
  return item;
}

async function undo() {
  const answer = await ask({ title: "Undo the last change?", text: info.can_undo, yes: "Undo" });
  if (!answer) return;
  await attempt(async () => follow(await post("/api/undo")));
  changed("model");
}

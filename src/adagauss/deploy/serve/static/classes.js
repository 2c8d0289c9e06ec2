// Class cards: known classes, and pictures that are not taught yet.
import { follow, post } from "./api.js";
import { ask, attempt } from "./dialogs.js";
import { droppable, isPicture, thumbnail } from "./files.js";

const SHOWN = 40;
const MANY = 12;
const TONES = 8;

let info = { classes: [], cannot: {} };
let changed = () => {};
let began = false;
const drafts = []; // {name, fresh, waiting: [{file, canvas}], taught: [canvas]}

// Known classes use the tones in order; new classes use the next ones.
export function tone(label, draft = null) {
  const known = info.classes.findIndex((one) => one.label === label);
  const fresh = drafts.filter((one) => one.fresh).indexOf(draft);
  if (known < 0 && fresh < 0) return "tone-none";
  return `tone-${(known < 0 ? info.classes.length + fresh : known) % TONES}`;
}

export const waiting = () => drafts.filter((draft) => draft.waiting.length);

export function setup(onChange) {
  changed = onChange;
  document.getElementById("add-class").addEventListener("click", () => {
    drafts.push(empty());
    render();
    [...document.querySelectorAll(".new-name")].find((field) => !field.value)?.focus();
  });
  document.getElementById("filter").addEventListener("input", render);
  const column = document.getElementById("cards").parentElement;
  droppable(column, (files) => add(draftOf("", true), files), addFolders);
}

export function show(model) {
  info = model;
  const known = new Set(info.classes.map((one) => one.label));
  for (const draft of drafts) draft.fresh = !known.has(draft.name);
  for (const draft of drafts.filter((one) => one.fresh && one.taught.length && !one.waiting.length)) remove(draft);
  // An empty model shows two empty cards, because classification needs two classes.
  if (!info.classes.length && !drafts.length) drafts.push(empty(), empty());
  if (info.classes.length && !began) drafts.filter(isBlank).forEach(remove);
  began = info.classes.length > 0;
  render();
}

// Marks uploaded pictures as taught. Their thumbnails stay until the page is closed.
export function markTaught(sent) {
  for (const { draft, items } of sent) {
    draft.waiting = draft.waiting.filter((item) => !items.includes(item));
    draft.taught = [...items.map((item) => item.canvas), ...draft.taught].slice(0, SHOWN);
    draft.fresh = false;
  }
}

function draftOf(name, fresh) {
  let draft = drafts.find((one) => one.name === name && (name || !one.waiting.length));
  if (!draft) {
    draft = { ...empty(), name, fresh };
    drafts.push(draft);
  }
  return draft;
}

const empty = () => ({ name: "", fresh: true, waiting: [], taught: [] });
const isBlank = (draft) => !draft.name && !draft.waiting.length;

function addFolders(folders) {
  const known = new Set(info.classes.map((one) => one.label));
  drafts.filter(isBlank).forEach(remove);
  for (const { folder, files } of folders) add(draftOf(folder, !known.has(folder)), files);
}

async function add(draft, files) {
  const pictures = [...files].filter(isPicture);
  for (const file of pictures) {
    draft.waiting.push({ file, canvas: await thumbnail(file) });
    if (draft.waiting.length % 8 === 0) render();
  }
  render();
}

function remove(draft) {
  const place = drafts.indexOf(draft);
  if (place >= 0) drafts.splice(place, 1);
}

function render() {
  const filter = document.getElementById("filter");
  filter.hidden = info.classes.length <= MANY;
  const wanted = filter.hidden ? "" : filter.value.trim().toLowerCase();
  const focused = document.activeElement?.draft;
  const cards = document.getElementById("cards");
  const known = info.classes
    .filter((one) => one.label.toLowerCase().includes(wanted))
    .map((one) => card(drafts.find((draft) => draft.name === one.label), one));
  const fresh = drafts.filter((draft) => draft.fresh).map((draft) => card(draft, null));
  cards.replaceChildren(...known, ...fresh);
  [...document.querySelectorAll(".new-name")].find((field) => field.draft === focused && focused)?.focus();
  changed();
}

function card(draft, known) {
  const element = document.getElementById("class-card").content.firstElementChild.cloneNode(true);
  const find = (selector) => element.querySelector(selector);
  element.classList.add(tone(known?.label, draft));
  element.dataset.label = known?.label ?? draft.name;
  find(".name").textContent = known?.label ?? "";
  find(".name").hidden = !known;
  find(".count").append(...counts(draft, known));
  find(".facts").textContent = known ? facts(known) : "";
  find(".facts").hidden = !find(".facts").textContent;
  const field = find(".new-name");
  field.hidden = Boolean(known);
  if (!known) {
    field.draft = draft;
    field.value = draft.name;
    field.addEventListener("input", () => {
      draft.name = field.value;
      changed();
    });
  }
  const more = known && info.cannot["teach more"];
  find(".drop").hidden = Boolean(more);
  element.title = more || "";
  const take = (files) => add(draft ?? draftOf(known.label, false), files);
  find(".file").addEventListener("change", (event) => take(event.target.files));
  find(".file").setAttribute("aria-label", `Add pictures of ${known?.label ?? "the new class"}`);
  if (!more) droppable(element, take);
  find(".thumbs").append(...thumbs(draft));
  find(".rename").hidden = !known;
  find(".rename").addEventListener("click", () => rename(known.label));
  find(".forget").title = known ? "Forget this class" : "Remove this card";
  find(".forget").addEventListener("click", () => (known ? forget(known.label) : (remove(draft), render())));
  return element;
}

function counts(draft, known) {
  const parts = known ? [`${known.images} ${known.images === 1 ? "picture" : "pictures"}`] : [];
  if (draft?.waiting.length) {
    const more = document.createElement("b");
    more.textContent = known ? ` + ${draft.waiting.length}` : `${draft.waiting.length} to teach`;
    parts.push(more);
  }
  return parts;
}

function facts(known) {
  const parts = [];
  if (known.expected_accuracy !== null) parts.push(`estimated accuracy ${Math.round(100 * known.expected_accuracy)} %`);
  const other = known.confused_with.find((one) => one.probability >= 0.02);
  if (other) parts.push(`confused with ${other.label} (${Math.round(100 * other.probability)} %)`);
  return parts.join(" · ");
}

function thumbs(draft) {
  if (!draft) return [];
  const fresh = draft.waiting.slice(0, SHOWN).map((item) => {
    const box = document.createElement("div");
    box.className = "thumb";
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "✕";
    button.title = "Do not teach this picture";
    button.addEventListener("click", () => {
      draft.waiting = draft.waiting.filter((one) => one !== item);
      render();
    });
    box.append(item.canvas, button);
    return box;
  });
  const taught = draft.taught.slice(0, SHOWN).map((canvas) => {
    const box = document.createElement("div");
    box.className = "thumb taught";
    box.append(canvas);
    return box;
  });
  const rest = document.createElement("span");
  rest.className = "more quiet";
  rest.textContent = draft.waiting.length > SHOWN ? `and ${draft.waiting.length - SHOWN} more` : "";
  return [...fresh, rest, ...taught];
}

async function rename(old) {
  const answer = await ask({ title: `Rename “${old}”`, input: old, yes: "Rename" });
  const name = answer?.input.trim();
  if (!name || name === old) return;
  await attempt(async () => {
    await follow(await post("/api/rename", { old, new: name }));
    for (const draft of drafts) if (draft.name === old) draft.name = name;
  });
  changed("model");
}

async function forget(label) {
  const answer = await ask({
    title: `Forget “${label}”?`,
    text: "Removes the class from the model. Undo restores it.",
    check: "Permanently: also delete the copies for undo",
    yes: "Forget",
  });
  if (!answer) return;
  await attempt(async () => {
    await follow(await post("/api/forget", { classes: [label], for_good: answer.check }));
    for (const draft of drafts.filter((one) => one.name === label)) remove(draft);
  });
  changed("model");
}

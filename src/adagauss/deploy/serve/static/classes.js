// Class cards: known classes, and pictures that are not taught yet.
import { follow, post } from "./api.js";
import { ask, attempt } from "./dialogs.js";
import { choosable, droppable, pictures, shown } from "./files.js";
import * as thumbnails from "./thumbnails.js";
import { frame } from "./webcam.js";

const SHOWN = 40;
const MANY = 12;
const TONES = 8;

let info = { name: "", classes: [], cannot: {} };
let changed = () => {};
let began = false;
let loading = 0;
let restored = null; // the stored thumbnails are read once
const drafts = []; // {name, fresh, waiting: [picture], taught: [picture]}; pictures are made by shown()

// Known classes use the tones in order; new classes use the next ones.
export function tone(label, draft = null) {
  const known = info.classes.findIndex((one) => one.label === label);
  const fresh = drafts.filter((one) => one.fresh).indexOf(draft);
  if (known < 0 && fresh < 0) return "tone-none";
  return `tone-${(known < 0 ? info.classes.length + fresh : known) % TONES}`;
}

export const waiting = () => drafts.filter((draft) => draft.waiting.length);
export const isWaiting = (file) => drafts.some((draft) => draft.waiting.some((item) => item.file === file));
export const isLoading = () => loading > 0;

export const clean = (name) => name.trim().replace(/\s+/g, " "); // same normalisation as the server
const images = (model, label) => model.classes.find((one) => one.label === label)?.images ?? 0;
const isKnown = (label) => info.classes.some((one) => one.label === label);

export function setup(onChange) {
  changed = onChange;
  document.getElementById("add-class").addEventListener("click", () => {
    drafts.push(empty());
    render();
    [...document.querySelectorAll(".new-name")].find((field) => !field.value)?.focus();
  });
  document.getElementById("filter").addEventListener("input", render);
  droppable(document.getElementById("cards").parentElement, addFolders);
  choosable(document.getElementById("class-folders"), addFolders);
}

export function show(model) {
  for (const draft of drafts) {
    // An undo takes away what was taught last, which is first in the list.
    const fewer = images(info, draft.name) - images(model, draft.name);
    if (fewer > 0) thumbnails.save(model.name, draft.name, (draft.taught = draft.taught.slice(fewer)));
  }
  info = model;
  for (const draft of drafts) draft.fresh = !isKnown(draft.name);
  for (const draft of drafts.filter((one) => one.fresh && one.taught.length)) drop(draft);
  // An empty model shows two empty cards, because classification needs two classes.
  if (!info.classes.length && !drafts.length) drafts.push(empty(), empty());
  if (info.classes.length && !began) drafts.filter(isBlank).forEach(remove);
  began = info.classes.length > 0;
  restored ??= restore();
  render();
}

async function restore() {
  for (const [label, files] of await thumbnails.load(info.name)) {
    if (isKnown(label)) draftOf(label).taught.push(...files.map(shown));
    else thumbnails.save(info.name, label, []);
  }
  render();
}

// Marks uploaded pictures as taught, except those that the server skipped.
export function markTaught(sent, skipped) {
  const names = skipped.map((one) => one.name);
  for (const { draft, items } of sent) {
    draft.waiting = draft.waiting.filter((item) => !items.includes(item));
    draft.taught = [...items.filter((item) => !names.includes(item.file.name)), ...draft.taught].slice(0, SHOWN);
    draft.fresh = false;
    thumbnails.save(info.name, draft.name, draft.taught);
  }
}

// Asks which class a picture shows, and lets it wait for teaching. Returns the name, or "" if cancelled.
export async function correct(file) {
  const options = [...info.classes.map((one) => one.label), ...drafts.map((one) => one.name).filter((name) => name && !isKnown(name))];
  const given = await ask({
    title: "What does the picture show?",
    text: "Choose a class or enter a new one. The picture waits on its card until you press Teach.",
    input: "",
    options,
    yes: "Add to the class",
  });
  const name = clean(given?.input ?? "");
  if (name) await add(draftOf(name), [file]);
  return name;
}

function draftOf(name) {
  let draft = drafts.find((one) => one.name === name && (name || !one.waiting.length));
  if (!draft) {
    draft = { ...empty(), name, fresh: !isKnown(name) };
    drafts.push(draft);
  }
  return draft;
}

const empty = () => ({ name: "", fresh: true, waiting: [], taught: [] });
const isBlank = (draft) => !draft.name && !draft.waiting.length;

// Adds pictures that may take a while to arrive; they cannot be taught before.
async function load(work) {
  loading += 1;
  changed();
  await attempt(work);
  loading -= 1;
  render();
}

function addFolders(found) {
  return load(async () => {
    for (const { folder, files } of await found) {
      const items = await pictures(files);
      if (!items.length) continue;
      drafts.filter(isBlank).forEach(remove);
      draftOf(clean(folder)).waiting.push(...items.map(shown));
    }
  });
}

// Adds files, or a promise of files, to a card.
export function add(draft, files) {
  return load(async () => draft.waiting.push(...(await pictures(await files)).map(shown)));
}

// Removes what was taught of a class that the model no longer has.
function drop(draft) {
  thumbnails.save(info.name, draft.name, []);
  draft.taught = [];
  if (!draft.waiting.length) remove(draft);
}

function remove(draft) {
  const place = drafts.indexOf(draft);
  if (place >= 0) drafts.splice(place, 1);
}

function render() {
  const filter = document.getElementById("filter");
  filter.hidden = info.classes.length <= MANY;
  const wanted = filter.hidden ? "" : filter.value.trim().toLowerCase();
  const cards = document.getElementById("cards");
  const active = document.activeElement;
  const place = [...cards.children].indexOf(active?.closest(".class"));
  const known = info.classes
    .filter((one) => one.label.toLowerCase().includes(wanted))
    .map((one) => card(drafts.find((draft) => draft.name === one.label), one));
  const fresh = drafts.filter((draft) => draft.fresh).map((draft) => card(draft, null));
  cards.replaceChildren(...known, ...fresh);
  if (place >= 0) focus(cards.children[place], active.classList[0]);
  changed();
}

// Focuses the same control of a card that was made again.
function focus(card, control) {
  const found = card?.querySelector(`.${control}`) ?? card?.querySelector(".file");
  found?.focus();
  if (control === "new-name") found?.setSelectionRange(found.value.length, found.value.length);
}

function card(draft, known) {
  const element = document.getElementById("class-card").content.firstElementChild.cloneNode(true);
  const find = (selector) => element.querySelector(selector);
  const title = known?.label ?? "the new class";
  element.classList.add(tone(known?.label, draft));
  element.setAttribute("aria-label", title);
  find(".name").textContent = known?.label ?? "";
  find(".name").hidden = !known;
  find(".count").append(...counts(draft, known));
  find(".facts").textContent = known ? facts(known) : "";
  find(".facts").hidden = !find(".facts").textContent;
  const field = find(".new-name");
  field.hidden = Boolean(known);
  field.value = draft?.name ?? "";
  field.addEventListener("input", () => {
    draft.name = field.value;
    changed();
  });
  const more = known && info.cannot["teach more"];
  find(".adding").hidden = Boolean(more);
  element.title = more || "";
  const take = (files) => add(draft ?? draftOf(known.label), files);
  const takeAll = (found) => take(found.then((folders) => folders.flatMap((one) => one.files)));
  choosable(find(".file"), takeAll);
  if (!more) droppable(element, takeAll);
  find(".capture").addEventListener("click", () => take(frame().then((file) => [file])));
  find(".thumbs").append(...thumbs(draft));
  find(".rename").hidden = !known;
  find(".rename").addEventListener("click", () => rename(known.label));
  find(".forget").addEventListener("click", () => (known ? forget(known.label) : (remove(draft), render())));
  const names = { file: `Add pictures of ${title}`, capture: `Add the webcam picture to ${title}`, rename: `Rename ${title}`, forget: known ? `Forget ${title}` : "Remove this card" };
  for (const [control, name] of Object.entries(names)) find(`.${control}`).setAttribute("aria-label", name);
  for (const control of ["rename", "forget"]) find(`.${control}`).title = names[control];
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
    const button = document.createElement("button");
    button.className = "leave-out";
    button.type = "button";
    button.textContent = "✕";
    button.title = "Do not teach this picture";
    button.setAttribute("aria-label", `Do not teach ${item.file.name}`);
    button.addEventListener("click", () => {
      draft.waiting = draft.waiting.filter((one) => one !== item);
      render();
    });
    return thumb("thumb", item, button);
  });
  const rest = document.createElement("span");
  rest.className = "more quiet";
  rest.textContent = draft.waiting.length > SHOWN ? `and ${draft.waiting.length - SHOWN} more` : "";
  return [...fresh, rest, ...draft.taught.map((item) => thumb("thumb taught", item))];
}

function thumb(classes, item, ...controls) {
  const box = document.createElement("div");
  box.className = classes;
  box.append(item.canvas, ...controls);
  item.draw();
  return box;
}

async function rename(old) {
  const given = await ask({ title: `Rename “${old}”`, input: old, yes: "Rename" });
  const name = clean(given?.input ?? "");
  if (!name || name === old) return;
  const merge = isKnown(name);
  const question = {
    title: `Merge “${old}” into “${name}”?`,
    text: `“${name}” is a class already. Merging makes one class of both; Undo separates them.`,
    yes: "Merge",
  };
  if (merge && !(await ask(question))) return;
  const draft = drafts.find((one) => one.name === old);
  if (draft) remove(draft); // so that no update drops its pictures before it has its new name
  const renamed = await attempt(async () => follow(await post("/api/rename", { old, new: name, merge })));
  if (draft) putBack(draft, renamed ? name : old);
  changed("model");
}

function putBack(draft, name) {
  if (draft.name !== name) thumbnails.save(info.name, draft.name, []);
  const into = draftOf(name);
  into.fresh = false;
  into.waiting.push(...draft.waiting);
  into.taught = [...draft.taught, ...into.taught].slice(0, SHOWN);
  thumbnails.save(info.name, name, into.taught);
}

async function forget(label) {
  const given = await ask({
    title: `Forget “${label}”?`,
    text: "Removes the class from the model. Undo restores it.",
    check: "Permanently: also delete the copies for undo",
    yes: "Forget",
  });
  if (!given) return;
  await attempt(async () => {
    await follow(await post("/api/forget", { classes: [label], for_good: given.check }));
    for (const draft of drafts.filter((one) => one.name === label)) {
      draft.waiting = [];
      drop(draft);
    }
  });
  changed("model");
}

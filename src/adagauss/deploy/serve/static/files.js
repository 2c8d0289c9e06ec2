// Picture files that were chosen, dropped or pasted, and their thumbnails.
import { say } from "./dialogs.js";

const SIDE = 256; // pixels of the longer side of a thumbnail
const NOT_SHOWN = /^(\.|thumbs\.db$|desktop\.ini$)/i; // files of the system
const NAMED = 3; // refused files that a message names
let formats = [];

export function show(model) {
  formats = model.formats;
}

const isRead = (file) => [ending(file.name), file.type.split("/")[1]].some((kind) => formats.includes(kind));
const ending = (name) => name.split(".").pop().toLowerCase();

// Returns the pictures among the files. Those that only the browser reads become JPEG; a message names all others.
export async function pictures(files) {
  const found = [];
  const refused = [];
  for (const file of files) {
    const picture = isRead(file) ? file : await converted(file);
    if (picture) found.push(picture);
    else if (!NOT_SHOWN.test(file.name)) refused.push(file.name);
  }
  if (refused.length) say(refusal(refused));
  return found;
}

async function converted(file) {
  try {
    const canvas = document.createElement("canvas");
    paint(canvas, await createImageBitmap(file));
    return await toFile(canvas, `${file.name}.jpg`);
  } catch {
    return null;
  }
}

function refusal(names) {
  const some = names.slice(0, NAMED).join(", ") + (names.length > NAMED ? " …" : "");
  const heic = names.some((name) => ["heic", "heif"].includes(ending(name)));
  const advice = heic ? "save them as JPEG, or install adagauss[heic] on the server" : "save pictures as JPEG or PNG";
  return `${names.length} ${names.length === 1 ? "file was" : "files were"} left out (${some}). The format is not read: ${advice}.`;
}

// Draws a picture so that its longer side has at most so many pixels; transparent parts become white.
export function paint(canvas, picture, [width, height] = [picture.width, picture.height], longest = Infinity) {
  const scale = Math.min(1, longest / Math.max(width, height));
  canvas.width = Math.max(1, Math.round(scale * width));
  canvas.height = Math.max(1, Math.round(scale * height));
  const pen = canvas.getContext("2d");
  pen.fillStyle = "#fff";
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.imageSmoothingQuality = "high";
  pen.drawImage(picture, 0, 0, canvas.width, canvas.height);
}

export async function toFile(canvas, name) {
  const content = await new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.92));
  return new File([content], name, { type: "image/jpeg" });
}

// A picture to send and, once draw() is called, to show: most of many pictures are never shown.
export function shown(file) {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 1;
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", file.name);
  let drawn = null;
  return { file, canvas, draw: () => (drawn ??= drawLater(file, canvas)) };
}

let queue = Promise.resolve(); // one at a time, because decoded photographs are large

function drawLater(file, canvas) {
  queue = queue.then(() => draw(file, canvas));
  return queue;
}

async function draw(file, canvas) {
  try {
    const picture = await createImageBitmap(file);
    paint(canvas, picture, undefined, SIDE);
    picture.close();
  } catch {
    // The browser does not read this format, for example TIFF; the server may.
    canvas.width = canvas.height = SIDE;
    const pen = canvas.getContext("2d");
    pen.fillStyle = "#888";
    pen.fillRect(0, 0, SIDE, SIDE);
    pen.fillStyle = "#fff";
    pen.font = "48px sans-serif";
    pen.textAlign = "center";
    pen.fillText(ending(file.name).slice(0, 8), SIDE / 2, SIDE / 2);
  }
}

// Calls `take` with a promise of [{folder, files}] for files that are dropped; files outside of a folder have folder "".
export function droppable(element, take) {
  let inside = 0;
  const carries = (event) => event.dataTransfer.types.includes("Files");
  element.addEventListener("dragenter", (event) => {
    if (!carries(event)) return;
    inside += 1;
    element.classList.add("over");
  });
  element.addEventListener("dragleave", () => {
    inside = Math.max(0, inside - 1);
    if (!inside) element.classList.remove("over");
  });
  element.addEventListener("dragover", (event) => carries(event) && event.preventDefault());
  element.addEventListener("drop", (event) => {
    if (!carries(event)) return;
    event.preventDefault();
    event.stopPropagation();
    inside = 0;
    element.classList.remove("over");
    take(dropped(event.dataTransfer));
  });
}

// Calls `take` in the same way for files that are chosen in a file input; it may choose folders.
export function choosable(input, take) {
  input.addEventListener("change", () => {
    const folders = Map.groupBy(input.files, (file) => file.webkitRelativePath.split("/").at(-2) ?? "");
    take(Promise.resolve([...folders].map(([folder, files]) => ({ folder, files }))));
    input.value = "";
  });
}

function dropped(transfer) {
  // Both lists are empty after the event, so they are read before anything is awaited.
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  const folders = entries.filter((entry) => entry.isDirectory);
  const names = new Set(folders.map((entry) => entry.name));
  const loose = [...transfer.files].filter((file) => !names.has(file.name));
  return Promise.all(folders.map(read)).then((found) => [...(loose.length ? [{ folder: "", files: loose }] : []), ...found.flat()]);
}

// The files in a folder and in the folders below it, each list with the name of its own folder.
async function read(folder) {
  const reader = folder.createReader();
  const files = [];
  const below = [];
  for (;;) {
    const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    if (!some.length) break;
    for (const entry of some) {
      if (entry.name.startsWith(".")) continue;
      if (entry.isDirectory) below.push(read(entry));
      else files.push(new Promise((resolve, reject) => entry.file(resolve, reject)));
    }
  }
  const deeper = (await Promise.all(below)).flat();
  return files.length ? [{ folder: folder.name, files: await Promise.all(files) }, ...deeper] : deeper;
}

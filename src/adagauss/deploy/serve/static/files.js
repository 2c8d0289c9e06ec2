// Files that were chosen, dropped or pasted, and their thumbnails.
const PICTURE = /\.(jpe?g|png|webp|gif|bmp|tiff?|ppm|pgm)$/i;
const SIDE = 192;

export const isPicture = (file) => file.type.startsWith("image/") || PICTURE.test(file.name);

// A square canvas with the whole picture; the picture itself need not be kept for it.
export async function thumbnail(file) {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = SIDE;
  const pen = canvas.getContext("2d");
  try {
    const picture = await createImageBitmap(file);
    const scale = SIDE / Math.max(picture.width, picture.height);
    const [width, height] = [picture.width * scale, picture.height * scale];
    pen.imageSmoothingQuality = "high";
    pen.drawImage(picture, (SIDE - width) / 2, (SIDE - height) / 2, width, height);
    picture.close();
  } catch {
    pen.fillStyle = "#8888";
    pen.fillRect(0, 0, SIDE, SIDE);
    pen.fillStyle = "#fff";
    pen.font = "28px sans-serif";
    pen.textAlign = "center";
    pen.fillText(file.name.split(".").pop().slice(0, 8), SIDE / 2, SIDE / 2);
  }
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", file.name);
  return canvas;
}

// Lets files be dropped on an element; folders come as their own list of {folder, files}.
export function droppable(element, onFiles, onFolders = null) {
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
  element.addEventListener("drop", async (event) => {
    if (!carries(event)) return;
    event.preventDefault();
    event.stopPropagation();
    inside = 0;
    element.classList.remove("over");
    const entries = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
    const loose = [...event.dataTransfer.files].filter(isPicture);
    const folders = entries.filter((entry) => entry.isDirectory);
    if (!folders.length) return onFiles(loose);
    const found = (await Promise.all(folders.map(read))).flat();
    if (onFolders) onFolders(found);
    else onFiles(found.flatMap((one) => one.files));
  });
}

// Pictures in a folder, and in the folders below it, each list under the name of its own folder.
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
  const pictures = (await Promise.all(files)).filter(isPicture);
  const deeper = (await Promise.all(below)).flat();
  return pictures.length ? [{ folder: folder.name, files: pictures }, ...deeper] : deeper;
}

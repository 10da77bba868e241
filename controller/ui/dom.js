// Building blocks for the page. Text from anywhere goes through textContent only: it may be hostile.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "text") node.textContent = value;
    else if (name === "series") node.style.setProperty("--series", value);
    else if (name === "arm") node.style.setProperty("--arm", value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

export const el = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
export const svg = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
export const byId = (id) => document.getElementById(id);

export function setText(id, text) {
  const node = byId(id);
  if (node.textContent !== text) node.textContent = text;
}

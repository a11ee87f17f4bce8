// Views are values: h() describes a node, patch() makes the page agree with it and keeps every node that can stay.
// Texts become text nodes and nothing else: no markup is ever made out of a value.

// Characters that turn the order of those around them, or show nothing, would make a name look like another one.
const HIDDEN = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u200b\u2028-\u202e\u2060-\u2069\ufeff]/g;
const plain = (text) => text.replace(HIDDEN, (one) => `⟨${one.charCodeAt(0).toString(16).padStart(4, "0")}⟩`);
const SVG = "http://www.w3.org/2000/svg";

export function h(tag, props, ...children) {
  return { tag, props: props || {}, children: children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false) };
}

export function patch(parent, children) {
  const wanted = [children].flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false);
  const keys = new Set(wanted.map((c) => c.props?.key).filter((key) => key !== undefined));
  const keyed = new Map();
  for (const node of [...parent.childNodes]) {
    if (node.lakeKey === undefined) continue;
    if (keys.has(node.lakeKey)) keyed.set(node.lakeKey, node);
    else node.remove();
  }
  let at = parent.firstChild;
  for (const child of wanted) {
    const key = child.props?.key;
    let node = key === undefined ? at : keyed.get(key);
    if (!node || !fits(node, child)) node = made(child, parent);
    if (node === at) at = at.nextSibling;
    else parent.insertBefore(node, at);
    update(node, child);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

function fits(node, child) {
  if (typeof child !== "object") return node.nodeType === 3;
  return node.nodeType === 1 && node.localName === child.tag && node.lakeKey === child.props.key;
}

function made(child, parent) {
  if (typeof child !== "object") return document.createTextNode("");
  const isSvg = child.tag === "svg" || (parent.namespaceURI === SVG && parent.localName !== "foreignObject");
  const node = isSvg ? document.createElementNS(SVG, child.tag) : document.createElement(child.tag);
  node.lakeKey = child.props.key;
  return node;
}

function update(node, child) {
  if (typeof child !== "object") {
    const text = plain(String(child));
    if (node.nodeValue !== text) node.nodeValue = text;
    return;
  }
  const before = node.lakeProps || {};
  for (const name in before) if (!(name in child.props)) set(node, name, null);
  for (const [name, value] of Object.entries(child.props)) if (before[name] !== value || name === "value") set(node, name, value);
  node.lakeProps = child.props;
  if (!child.props.foreign) patch(node, child.children);
}

function set(node, name, value) {
  if (name === "key" || name === "foreign") return;
  if (name.startsWith("on")) node[name] = value;
  else if (name === "value") {
    if (node.value !== value && document.activeElement !== node) node.value = value ?? "";
  } else if (name === "style") for (const [part, to] of Object.entries(value || {})) node.style[part] = to;
  else if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else node.setAttribute(name, value === true ? "" : typeof value === "string" && name !== "href" ? plain(value) : value);
}

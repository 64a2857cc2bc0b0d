// Numbers as people read them, and elements made from values: always as text, never as HTML.

const kNumber = new Intl.NumberFormat('en');

export function count(n) {
  return kNumber.format(Math.round(n));
}

export function duration(ms) {
  if (!(ms > 0)) return '0 ms';
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60000) return `${(ms / 1000).toFixed(ms < 10000 ? 2 : 1)} s`;
  return `${Math.floor(ms / 60000)} min ${Math.round((ms % 60000) / 1000)} s`;
}

export function bytes(n) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  while (n >= 1024 && unit + 1 < units.length) {
    n /= 1024;
    ++unit;
  }
  return `${n >= 100 || unit === 0 ? Math.round(n) : n.toFixed(1)} ${units[unit]}`;
}

export function rate(perSecond) {
  return perSecond >= 10 || Number.isInteger(perSecond) ? count(perSecond) : perSecond.toFixed(1);
}

// "0 %" only for nothing, "100 %" only for all.
export function percent(part, whole) {
  if (!(whole > 0) || !(part > 0)) return '0 %';
  const value = 100 * part / whole;
  if (part < whole && value > 99) return `${(Math.floor(value * 10) / 10).toFixed(1)} %`;
  return value < 1 ? '< 1 %' : `${Math.round(value)} %`;
}

// An element with attributes; children are elements or text.
export function element(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

export function svgElement(name, attributes = {}, ...children) {
  return filled(document.createElementNS('http://www.w3.org/2000/svg', name), attributes, children);
}

function filled(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

// Leaves what is right already alone, so that screen readers and selections are not disturbed.
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function byId(id) {
  return document.getElementById(id);
}

// A horizontal bar of segments {name, share}, shares of its whole width.
export function fillBar(bar, segments) {
  while (bar.children.length > segments.length) bar.lastChild.remove();
  while (bar.children.length < segments.length) bar.append(document.createElement('span'));
  segments.forEach(({name, share}, i) => {
    bar.children[i].className = name;
    bar.children[i].style.width = `${(100 * Math.min(1, Math.max(0, share))).toFixed(3)}%`;
  });
}

export function legendItem(swatch, label) {
  return element('li', {}, element('span', {class: `swatch ${swatch}`}), label);
}

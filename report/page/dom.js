// Elements, numbers, the tooltip. Text from records reaches the page through text nodes only.

const UNKNOWN = 'no record';

function append(parent, children) {
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) parent.append(child);
  }
  return parent;
}

function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return append(element, children);
}

function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return append(element, children);
}

const isKnown = (value) => value !== null && value !== undefined && Number.isFinite(value);
const known = (format) => (value) => (isKnown(value) ? format(value) : UNKNOWN);

const count = known((value) => value.toLocaleString('en'));
const short = known((value) => Intl.NumberFormat('en', { notation: 'compact' }).format(value));
const times = known((value) => `${Number(value.toPrecision(3))}×`);

// Small shares keep their digits, at both ends: one decision in ten thousand is not "0 %".
const percent = known((share) => {
  const value = share * 100;
  const rest = Math.min(value, 100 - value);
  if (rest > 0 && rest < 0.0001) return value < 50 ? '< 0.0001\u00a0%' : '> 99.9999\u00a0%';
  const digits = rest === 0 || rest >= 1 ? 1 : Math.ceil(-Math.log10(rest)) + 1;
  return `${Number(value.toFixed(digits))}\u00a0%`;
});

const bytes = known((value) => {
  const units = ['bytes', 'kB', 'MB', 'GB', 'TB', 'PB'];
  let unit = 0;
  while (value >= 999.5 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${Number(value.toPrecision(3))}\u00a0${units[unit]}`;
});

const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;

// Blanks, controls and characters that turn or hide others are made visible.
function visible(text) {
  const named = { '\n': '⏎', '\t': '⇥', '\r': '␍' };
  return text
    .replace(/^ +| +$|^$/g, (blanks) => '␣'.repeat(blanks.length))
    .replace(/[\n\t\r]/g, (character) => named[character])
    .replace(/[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g,
      (character) => `\\u{${character.codePointAt(0).toString(16)}}`);
}

const name = (text) => el('bdi', { class: 'name' }, visible(text));

function table(columns, rows, attributes = {}) {
  const side = (column) => (column.text ? {} : { class: 'number' });
  return el('div', { class: rows.length > 14 ? 'scroll tall' : 'scroll', tabindex: 0, role: 'region', ...attributes },
    el('table', {},
      el('thead', {}, el('tr', {}, columns.map((column) => el('th', { scope: 'col', ...side(column) }, column.name)))),
      el('tbody', {}, rows.map((row) =>
        el('tr', {}, row.map((cell, index) => el('td', side(columns[index]), cell)))))));
}

function picture({ title, caption, controls = [], legend = [], plot, numbers }) {
  return el('figure', {},
    el('h3', {}, title),
    el('figcaption', {}, caption),
    controls.length > 0 && el('div', { class: 'controls' }, controls),
    plot,
    legend.length > 0 && el('div', { class: 'legend' }, legend),
    numbers && el('details', {}, el('summary', {}, 'Numbers'), numbers));
}

const key = (kind, text) => el('span', {}, el('i', { class: `swatch ${kind}` }), text);

function choice(label, options, onChange) {
  const select = el('select', {}, options.map(([value, text]) => el('option', { value }, text)));
  select.addEventListener('change', () => onChange(select.value));
  return el('label', {}, `${label} `, select);
}

// All pictures are drawn again when their width or the colour scheme changes.
const drawings = new Map();
const widths = new ResizeObserver((entries) => {
  for (const { target, contentRect } of entries) {
    const drawing = drawings.get(target);
    if (drawing && contentRect.width > 0 && drawing.width !== contentRect.width) {
      drawing.width = contentRect.width;
      drawing.draw();
    }
  }
});
function keepDrawn(host, draw) {
  drawings.set(host, { draw, width: 0 });
  widths.observe(host);
}
for (const query of ['(prefers-color-scheme: dark)', 'print']) {
  matchMedia(query).addEventListener('change', () => drawings.forEach(({ draw }) => draw()));
}

function showTip(lines, x, y) {
  const tip = document.getElementById('tip');
  tip.replaceChildren(...lines.map((line) => el('div', {}, line)));
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - width - 4))}px`;
  tip.style.top = `${y + 18 + height > innerHeight ? Math.max(4, y - height - 12) : y + 18}px`;
}

// Pointer, touch and arrow keys walk over a plot. `find` gives the cell at a point, `step` the one beside a
// cell, `box` its rectangle, `describe` its lines of text.
function explore(host, { find, step, box, describe, markClass = '' }) {
  const mark = el('div', { class: `mark ${markClass}`, hidden: '' });
  host.append(mark);
  host.tabIndex = 0;
  let cell = null;
  const hide = () => {
    mark.hidden = true;
    document.getElementById('tip').hidden = true;
  };
  const show = (next) => {
    cell = next;
    if (!cell) return hide();
    const place = box(cell);
    mark.hidden = false;
    for (const side of ['left', 'top', 'width', 'height']) mark.style[side] = `${place[side]}px`;
    const outer = host.getBoundingClientRect();
    return showTip(describe(cell), outer.left + place.left + place.width / 2, outer.top + place.top + place.height / 2);
  };
  const follow = (event) => {
    const outer = host.getBoundingClientRect();
    show(find(event.clientX - outer.left, event.clientY - outer.top));
  };
  host.addEventListener('pointermove', follow);
  host.addEventListener('pointerdown', follow);
  host.addEventListener('pointerleave', hide);
  host.addEventListener('blur', hide);
  host.addEventListener('keydown', (event) => {
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    if (event.key === 'Escape') hide();
    if (!(event.key in moves)) return;
    event.preventDefault();
    show(step(cell, ...moves[event.key]));
    document.getElementById('spoken').textContent = cell ? describe(cell).join(', ') : '';
  });
}

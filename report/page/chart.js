// Lines and bars over labelled places, as SVG at the width that there is.

function niceStep(range, most) {
  const rough = range / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((step) => step >= rough * 0.999);
}

// Every how manyth label fits.
function labelStride(labels, width) {
  const widest = Math.max(...labels.map((label) => label.length)) * 6.5 + 10;
  const rough = Math.max(1, Math.ceil((labels.length * widest) / width));
  return [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].find((stride) => stride >= rough) ?? rough;
}

function runs(values) {
  const found = [];
  values.forEach((value, index) => {
    if (!isKnown(value)) return;
    if (index > 0 && isKnown(values[index - 1]) && found.length > 0) found[found.length - 1].push(index);
    else found.push([index]);
  });
  return found;
}

let numHatches = 0;
function hatch() {
  numHatches += 1;
  const id = `hatch${numHatches}`;
  const pattern = svg('pattern', { id, width: 6, height: 6, patternUnits: 'userSpaceOnUse', patternTransform: 'rotate(45)' },
    svg('line', { class: 'hatch-line', x1: 0, y1: 0, x2: 0, y2: 6 }));
  return { definition: svg('defs', {}, pattern), fill: `url(#${id})` };
}

// labels: one per place. series: {name, look, values (null = no record), bar | dashed | aside}; bars are
// stacked in their order. What is `aside` only helps to read the others: a place where they have no value is
// hatched, and their values alone set the scale.
function chart({ label, labels, xTitle, yTitle, format, series, floor = 0, describe }) {
  const host = el('div', { class: 'plot chart' });
  const bars = series.filter((one) => one.bar);
  const lines = series.filter((one) => !one.bar);
  const main = series.filter((one) => !one.aside);
  const isEmpty = (index) => main.every((one) => !isKnown(one.values[index]));
  const tops = labels.map((_, index) => Math.max(
    bars.reduce((sum, one) => sum + (one.values[index] ?? 0), 0),
    ...lines.filter((one) => !one.aside).map((one) => one.values[index] ?? 0)));
  const highest = Math.max(floor, ...tops);
  const step = niceStep(highest > floor ? highest - floor : 1, 4);
  const ceiling = floor + step * Math.ceil((highest > floor ? highest - floor : 1) / step - 1e-9);
  const area = { left: 52, top: 20, height: 170 };
  const right = () => Math.max(area.left + 10, host.clientWidth - 8);
  const slot = () => (right() - area.left) / labels.length;
  const x = (index) => area.left + slot() * (index + 0.5);
  const y = (value) => area.top + area.height * (1 - (Math.min(Math.max(value, floor), ceiling) - floor) / (ceiling - floor));

  function drawAxes(root) {
    for (let value = floor; value <= ceiling + step / 2; value += step) {
      root.append(svg('line', { class: 'grid', x1: area.left, x2: right(), y1: y(value), y2: y(value) }),
        svg('text', { x: area.left - 6, y: y(value) + 4, 'text-anchor': 'end' }, format(Number(value.toPrecision(6)))));
    }
    const stride = labelStride(labels, right() - area.left);
    labels.forEach((text, index) => {
      if (index % stride === 0) {
        root.append(svg('text', { x: x(index), y: area.top + area.height + 16, 'text-anchor': 'middle' }, text));
      }
    });
    root.append(svg('text', { x: 2, y: 11 }, yTitle),
      svg('text', { x: (area.left + right()) / 2, y: area.top + area.height + 34, 'text-anchor': 'middle' }, xTitle),
      svg('line', { class: 'axis', x1: area.left, x2: right(), y1: y(floor), y2: y(floor) }));
  }

  function drawBars(root) {
    const gap = slot() > 4 ? Math.min(4, slot() * 0.2) : 0;
    labels.forEach((_, index) => {
      let from = floor;
      for (const one of bars) {
        if (!isKnown(one.values[index])) continue;
        const to = from + one.values[index];
        root.append(svg('rect', { class: `fill ${one.look}`, x: x(index) - slot() / 2 + gap / 2, width: Math.max(slot() - gap, 0.5),
          y: y(to), height: Math.max(y(from) - y(to), 0) }));
        from = to;
      }
    });
  }

  function drawLines(root) {
    for (const one of lines) {
      for (const run of runs(one.values)) {
        const points = run.map((index) => `${x(index).toFixed(1)},${y(one.values[index]).toFixed(1)}`);
        root.append(svg('polyline', { class: `line ${one.look}${one.dashed ? ' dashed' : ''}`, points: points.join(' ') }));
        if (one.dashed || (run.length > 1 && labels.length > 40)) continue;
        for (const index of run) {
          root.append(svg('circle', { class: `fill ${one.look}`, cx: x(index), cy: y(one.values[index]), r: 3 }));
        }
      }
    }
  }

  keepDrawn(host, () => {
    const height = area.top + area.height + 40;
    const { definition, fill } = hatch();
    const root = svg('svg', { role: 'img', 'aria-label': label, height, viewBox: `0 0 ${host.clientWidth} ${height}` }, definition);
    labels.forEach((_, index) => {
      if (isEmpty(index)) {
        root.append(svg('rect', { class: 'missing', fill, x: x(index) - slot() / 2, y: area.top, width: slot(), height: area.height }));
      }
    });
    drawAxes(root);
    drawBars(root);
    drawLines(root);
    host.querySelector('svg')?.remove();
    host.prepend(root);
  });

  const lineOf = (one, index) => `${one.name}: ${known(format)(one.values[index])}`;
  const clamp = (index) => Math.max(0, Math.min(labels.length - 1, index));
  explore(host, {
    markClass: 'band',
    find: (left) => (left < area.left - 4 || left > right() + 4 ? null : { index: clamp(Math.floor((left - area.left) / slot())) }),
    step: (cell, _, across) => ({ index: clamp((cell ? cell.index : -1) + across) }),
    box: ({ index }) => ({ left: x(index) - slot() / 2, top: area.top, width: Math.max(slot(), 2), height: area.height }),
    describe: ({ index }) => [`${xTitle} ${labels[index]}`, ...series.map((one) => lineOf(one, index)), ...(describe?.(index) ?? [])],
  });
  return host;
}

function chartLegend(series, hasHoles) {
  return [...series.map((one) => key(one.dashed ? 'dashed' : one.look, one.name)), hasHoles && key('hatch', UNKNOWN)];
}

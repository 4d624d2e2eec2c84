// Heat maps on a canvas. Where several cells share a pixel, the one furthest from even is shown, so that a
// lone hot expert among many stays visible.

const style = (variable) => getComputedStyle(document.documentElement).getPropertyValue(variable).trim();
const rgb = (variable) => [1, 3, 5].map((at) => parseInt(style(variable).slice(at, at + 2), 16));

function ramp(variables) {
  const stops = variables.map(rgb);
  return (share) => {
    const at = Math.max(0, Math.min(1, share)) * (stops.length - 1);
    const from = Math.min(Math.floor(at), stops.length - 2);
    return stops[from].map((channel, index) => Math.round(channel + (stops[from + 1][index] - channel) * (at - from)));
  };
}

// Ratios on a scale of powers of two: a quarter and less … even … four times and more. Zero has its own
// colour where `never` is set.
function ratioColours(never) {
  const colour = ramp(['--cold-end', '--cold-mid', '--even', '--hot-mid', '--hot-end']);
  const zero = never ? rgb('--never') : colour(0);
  return (ratio) => (ratio === 0 ? zero : colour((Math.log2(ratio) + 2) / 4));
}

function imbalanceColours(most) {
  const colour = ramp(['--even', '--hot-mid', '--hot-end']);
  return (ratio) => colour(Math.log2(Math.max(ratio, 1)) / Math.log2(most));
}

const distance = (ratio) => (ratio === 0 ? 8 : Math.abs(Math.log2(ratio)));

function strongest(value, row, from, to) {
  let best = null;
  for (let column = from; column < to; column += 1) {
    const candidate = value(row, column);
    if (candidate !== null && (best === null || distance(candidate) > distance(best))) best = candidate;
  }
  return best;
}

function hatchPattern(context, scale) {
  const tile = document.createElement('canvas');
  tile.width = tile.height = 8 * scale;
  const pen = tile.getContext('2d');
  pen.fillStyle = style('--hatch-back');
  pen.fillRect(0, 0, tile.width, tile.height);
  pen.strokeStyle = style('--hatch-line');
  pen.lineWidth = 1.5 * scale;
  pen.beginPath();
  for (const shift of [-1, 0, 1]) {
    pen.moveTo(shift * tile.width - scale, tile.height + scale);
    pen.lineTo((shift + 1) * tile.width + scale, -scale);
  }
  pen.stroke();
  return context.createPattern(tile, 'repeat');
}

// value(row, column): a ratio, or null = no record. colours(): a function from ratio to [r, g, b].
function heatMap({ label, rowLabels, numColumns, columnLabel, rowTitle, columnTitle, value, colours, describe }) {
  const canvas = el('canvas', { role: 'img', 'aria-label': label });
  const host = el('div', { class: 'plot heat' }, canvas);
  const rowHeight = Math.max(5, Math.min(22, Math.floor(440 / rowLabels.length)));
  const area = { left: 34, top: 16, height: rowHeight * rowLabels.length };
  const width = () => Math.max(10, host.clientWidth - area.left - 2);

  // One pixel a row, and no more columns than the screen has.
  function image(most) {
    const columns = Math.min(numColumns, most);
    const pixels = new ImageData(columns, rowLabels.length);
    const colour = colours();
    for (let row = 0; row < rowLabels.length; row += 1) {
      for (let column = 0; column < columns; column += 1) {
        const from = Math.floor((column * numColumns) / columns);
        const found = strongest(value, row, from, Math.max(from + 1, Math.floor(((column + 1) * numColumns) / columns)));
        if (found !== null) pixels.data.set([...colour(found), 255], (row * columns + column) * 4);
      }
    }
    const small = document.createElement('canvas');
    small.width = columns;
    small.height = rowLabels.length;
    small.getContext('2d').putImageData(pixels, 0, 0);
    return small;
  }

  function drawLabels(pen) {
    pen.fillStyle = style('--faint');
    pen.font = '11px system-ui, sans-serif';
    pen.textBaseline = 'middle';
    pen.textAlign = 'right';
    const stride = [1, 2, 5, 10, 20, 50].find((every) => every * rowHeight >= 12) ?? 50;
    rowLabels.forEach((text, row) => {
      if (row % stride === 0) pen.fillText(text, area.left - 5, area.top + (row + 0.5) * rowHeight);
    });
    pen.textAlign = 'left';
    pen.fillText(rowTitle, 0, 6);
    const below = area.top + area.height + 10;
    const step = Math.max(1, niceStep(numColumns, Math.max(2, width() / 70)));
    for (let column = 0; column < numColumns; column += Math.ceil(step)) {
      pen.fillText(columnLabel(column), area.left + (column * width()) / numColumns, below);
    }
    pen.textAlign = 'center';
    pen.fillText(columnTitle, area.left + width() / 2, below + 17);
  }

  keepDrawn(host, () => {
    const scale = devicePixelRatio || 1;
    const height = area.top + area.height + 36;
    canvas.width = Math.round(host.clientWidth * scale);
    canvas.height = Math.round(height * scale);
    canvas.style.height = `${height}px`;
    const pen = canvas.getContext('2d');
    pen.fillStyle = hatchPattern(pen, scale);
    pen.fillRect(area.left * scale, area.top * scale, width() * scale, area.height * scale);
    pen.imageSmoothingEnabled = false;
    pen.drawImage(image(Math.ceil(width() * scale)), area.left * scale, area.top * scale, width() * scale, area.height * scale);
    pen.scale(scale, scale);
    drawLabels(pen);
  });

  const clamp = (index, size) => Math.max(0, Math.min(size - 1, index));
  explore(host, {
    find: (left, top) => {
      const row = Math.floor((top - area.top) / rowHeight);
      const column = Math.floor(((left - area.left) / width()) * numColumns);
      const inside = row >= 0 && row < rowLabels.length && column >= 0 && column < numColumns;
      return inside ? { row, column } : null;
    },
    step: (cell, down, across) => (cell
      ? { row: clamp(cell.row + down, rowLabels.length), column: clamp(cell.column + across, numColumns) }
      : { row: 0, column: 0 }),
    box: ({ row, column }) => ({
      left: area.left + (column * width()) / numColumns - 2,
      top: area.top + row * rowHeight - 2,
      width: Math.max(width() / numColumns, 1) + 4,
      height: rowHeight + 4,
    }),
    describe: ({ row, column }) => describe(row, column),
  });
  return { host, redraw: () => drawings.get(host).draw() };
}

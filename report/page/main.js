// The page.

function specLine() {
  const facts = [
    spec.model && visible(spec.model),
    spec.stack !== 'target' && `stack ${visible(spec.stack)}`,
    `${plural(spec.layers.length, 'MoE layer')}${spec.layers.length > 1 ? ` (${spec.layers[0]} … ${spec.layers.at(-1)})` : ''} of ${plural(spec.num_layers, 'layer')}`,
    plural(spec.num_experts, 'expert'), `top-${spec.top_k}`,
    spec.excluded.length > 0 && `left out: ${spec.excluded.map(([layer, reason]) => `${layer} (${visible(reason)})`).join(', ')}`,
  ];
  return el('p', { class: 'faint' }, facts.filter(Boolean).join(' · '));
}

function build() {
  const sections = [
    section('load', 'Load', loadPicture(), imbalancePicture(), reusePicture()),
    timeSection(), agreementSection(), tokensSection(), versionsSection(),
    section('sizes', 'Contents and sizes', contentTable(), records.map(sizeTable)),
  ].filter(Boolean);
  const links = sections.map((one) => el('a', { href: `#${one.id}` }, one.querySelector('h2').textContent));
  document.getElementById('report').replaceChildren(
    el('h1', {}, visible(data.title)), specLine(),
    el('section', { class: 'cards', 'aria-label': 'At a glance' }, loadCard(), agreementCard(), versionsCard(), completenessCard()),
    el('nav', { 'aria-label': 'Sections' }, links), ...sections);
}

build();

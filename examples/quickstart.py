"""Record two steps of an engine, read one request, ship it, and cut the rows for a trainer's rank."""

import numpy as np

import moetape as mt

spec = mt.RouteSpec(layers=range(3, 61), top_k=8, num_experts=256)  # DeepSeek-V3: layers 0-2 are dense
store = mt.Store(spec, num_slots=4096)  # one row a KV slot
recorder = mt.Recorder(store, max_rows=512)


def forward(slots, version):
    """What an engine does: the routers' hooks call capture, the step ends with commit."""
    recorder.begin()
    for layer in spec.layers:
        scores = np.random.default_rng(layer).random((len(slots), 256))
        recorder.capture(layer, scores.argsort(axis=1)[:, :8])  # topk_ids, any integer array
    return recorder.commit(slots, version=version)


ticket = forward(slots=[64, 65, 66, 67, 68], version=7)  # a prompt of five tokens
forward(slots=[69], version=7)  # one decoded token
print(ticket.report)

request = store.read([64, 65, 66, 67, 68, 69, 70], tokens=[11, 12, 13, 14, 15, 16, 17])
print(request.ids.shape, request.versions, request.missing)  # slot 70 is missing, not expert 0

request = request.slice(0, 6)
text = mt.encode(request, "sglang")  # or "vllm", "lightllm"
received = mt.decode(text, "sglang", spec=spec, version=7).with_tokens([11, 12, 13, 14, 15, 16])
assert received == request

row_ids = np.append(mt.replay.row_ids(0, np.arange(6)), [0, 0])  # cut like the tokens, then padded
plan = mt.replay.Plan.from_row_ids(row_ids, layers=[3, 4])  # the layers of this pipeline stage
ids, uses = plan.apply([received], dtype="int64")
print(ids.shape, uses)  # [layers, rows, k]; 1 = replayed, 0 = padding

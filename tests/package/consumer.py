"""Records two tokens, ships them and gets them back, with nothing but the installed wheel and numpy."""

import sys

import numpy as np

import moetape as mt

ids = np.array([[[3, 7]], [[0, 5]]], dtype=np.int32)
spec = mt.RouteSpec(layers=[1], top_k=2, num_experts=8)
store = mt.Store(spec, num_slots=16)
recorder = mt.Recorder(store, max_rows=4)
recorder.capture(1, ids[:, 0])
recorder.commit(np.array([4, 9])).wait()
routes = store.read(np.array([4, 9]))
back = mt.decode(mt.encode(routes, "sglang"), "sglang", spec=spec)
assert np.array_equal(routes.ids, ids), routes.ids
assert back.complete
assert np.array_equal(back.ids, ids), back.ids
assert "torch" not in sys.modules
print("consumer: ok")

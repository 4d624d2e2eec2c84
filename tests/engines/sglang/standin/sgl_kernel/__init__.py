"""Stands in for SGLang's CPU kernels, which no wheel carries.

SGLang 0.5.23 imports these names on a CPU and calls them in speculative decoding only. No operator of
`torch.ops.sgl_kernel` may be registered here: their absence is what keeps every layer on its torch path.
"""

from collections.abc import Callable
from typing import Any, NoReturn

_NAMES = (
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "rotate_input_ids_cpu",
    "verify_tree_greedy_cpu",
)


def _absent(name: str) -> Callable[..., NoReturn]:
    def call(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name} stands in for a kernel that is not here")

    return call


globals().update({name: _absent(name) for name in _NAMES})

"""verl's router replay (0.9.1) by verl's own names, for a trainer that changes its imports and nothing else.

    from moetape.trainers.verl import RouterReplay, RouterReplayAction, apply_router_replay_patch
    from moetape.trainers.verl import set_router_replay_data, merge_router_topk_indices, ...

Names, arguments and shapes are verl's; a rank's rows are cut by moetape.replay. What verl does in silence is
otherwise: a row without a record is missing (-1 in every id) and routed live, a live choice is kept for
recomputation, and ids that cannot be right are errors. The VeOmni engine's half is trainers.verl.veomni.
"""

from moetape.trainers.verl._layers import (
    RouterReplayHelper,
    get_current_rank_layer_info,
    get_moe_num_layers_to_build,
    get_num_layers_to_build,
    is_moe_layer,
    iter_model_routers,
    set_model_router_replay_action,
)
from moetape.trainers.verl._merge import (
    merge_nested_router_maps,
    merge_router_topk_indices,
    pp_gather,
    reorder_and_merge_vpp_layers,
)
from moetape.trainers.verl._replay import (
    align_r3_router_replay_data,
    build_r3_replay_mask,
    set_router_replay_data,
)
from moetape.trainers.verl._router_replay import (
    RouterReplay,
    RouterReplayAction,
    apply_router_replay_patch,
)

__all__ = [
    "RouterReplay",
    "RouterReplayAction",
    "RouterReplayHelper",
    "align_r3_router_replay_data",
    "apply_router_replay_patch",
    "build_r3_replay_mask",
    "get_current_rank_layer_info",
    "get_moe_num_layers_to_build",
    "get_num_layers_to_build",
    "is_moe_layer",
    "iter_model_routers",
    "merge_nested_router_maps",
    "merge_router_topk_indices",
    "pp_gather",
    "reorder_and_merge_vpp_layers",
    "set_model_router_replay_action",
    "set_router_replay_data",
]

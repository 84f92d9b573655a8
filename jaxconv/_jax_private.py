"""The names that jaxconv needs of JAX's private modules: there is no public way to what they do."""

import jax

try:
    from jax._src.config import enable_x64 as enable_x64
    from jax._src.core import trace_state_clean as trace_state_clean
    from jax._src.dispatch import simple_impl as simple_impl
    from jax._src.distributed import global_state as global_state
    from jax._src.interpreters.mlir import _lowerings as _lowerings
    from jax._src.interpreters.mlir import _platform_specific_lowerings as _platform_specific_lowerings
    from jax._src.interpreters.mlir import lower_with_sharding_in_types as lower_with_sharding_in_types
    from jax._src.sharding_impls import GSPMDSharding as GSPMDSharding
    from jax._src.sharding_impls import ShardingContext as ShardingContext
    from jax._src.sharding_impls import parse_flatten_op_sharding as parse_flatten_op_sharding
except ImportError as error:
    raise ImportError(
        f"jaxconv works with jax 0.10 to 0.12, but jax {jax.__version__} is installed, which lacks a name ({error}). "
        "Install one of those: pip install 'jax>=0.10,<0.13'"
    ) from error

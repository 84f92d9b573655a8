"""`python -m benchmarks --help`: jaxconv beside lax."""

import os
import sys
from pathlib import Path

# Kernels take longer in a command buffer (a CUDA graph). XLA reads its flags when JAX starts. Whole networks run as
# users run them.
if sys.argv[1:2] != ["clients"]:
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_enable_command_buffer="
sys.path.insert(0, str(Path(__file__).parent))

from convbench.command import main

sys.exit(main())

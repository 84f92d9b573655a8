#!/usr/bin/env bash
# Tries the wheels in dist/ as users have them, in a clean environment without GPU and toolkit: the host's tests, the
# CUDA module, and the CUDA module beside JAX for CUDA 12.
# usage: packages/try_wheels.sh PYTHON TEST...
set -euo pipefail
cd "$(dirname "$0")/.."
environment=$(mktemp -d)
trap 'rm -rf "$environment"' EXIT
python=$environment/bin/python

install_built() {
  "$python" -m pip install --quiet --no-index --no-deps --only-binary :all: --find-links dist "$1"
}

doctor() { # its output, and its exit status
  (cd "$environment" && "$python" -m jaxconv doctor) 2>&1 | tee "$environment/output"
}

says() {
  grep --quiet --fixed-strings "$1" "$environment/output" || { echo "not said: $1" && exit 1; }
}

"$1" -m venv "$environment"
install_built jaxconv
"$python" -m pip install --quiet 'jaxconv[bench,test]' # what they need: jaxconv itself is there
doctor
"$python" -P -m pytest -n 2 -m "not gpu and not full" "${@:2}"

install_built jaxconv-cuda13-plugin
doctor
says "kernels: ok"
lower='
import jax, jaxconv
x, w = jax.ShapeDtypeStruct((8, 32, 32, 16), "bfloat16"), jax.ShapeDtypeStruct((3, 3, 16, 32), "bfloat16")
print(jax.jit(jaxconv.conv2d).trace(x, w).lower(lowering_platforms=("cuda",)).as_text())
'
"$python" -P -W error -c "$lower" >"$environment/output"
says jaxconv_conv

# Only the package that says which CUDA: the others need a driver.
"$python" -m pip install --quiet --no-deps "jax-cuda12-plugin==$("$python" -c 'import jaxlib; print(jaxlib.__version__)')"
if doctor; then echo "the doctor finds nothing wrong with JAX for CUDA 12" && exit 1; fi
says "JAX is installed for CUDA 12"
"$python" -P -c "$lower" &>"$environment/output"
says FallbackWarning
says stablehlo.convolution

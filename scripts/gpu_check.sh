#!/usr/bin/env bash
# Builds both libraries and checks devices, streams, memory and NCCL on this machine's GPU, in under five minutes. Without LIBTORCH it
# takes the PyTorch of python3, where that is the pinned version for CUDA 13, and else fetches one. A machine without Go needs
# build/lib/gpu.test, which a machine with Go makes (the command is below).
set -euo pipefail
cd "$(dirname "$0")/.."
if [[ -z "${LIBTORCH:-}" ]]; then
	version="$(sed -n 's/^torch==\([0-9.]*\).*/\1/p' scripts/libtorch.txt)"
	found="$(python3 -c 'import os, torch; print(torch.__version__, os.path.dirname(torch.__file__))' 2>/dev/null || true)"
	if [[ "$found" == "$version+cu130 "* ]]; then
		export LIBTORCH="${found#* }"
	fi
fi
scripts/lib cuda
if command -v go >/dev/null; then
	go test -c -tags gpu -o build/lib/gpu.test ./torch
fi
cd torch # where tests run; Go finds the libraries beside the program
../build/lib/gpu.test -test.v -test.timeout 4m -test.run '^TestGPU'

# Molt's build. What is fetched or shared lies in the user's cache, ${XDG_CACHE_HOME:-~/.cache}/molt.
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

.DEFAULT_GOAL := help
.PHONY: help go build lib cuda quickstart test test-text lint loc asan bench soak gotorch

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

go:
	@scripts/need go c++

build: go lib ## build the library and every Go package
	go build ./...

lib: ## build libmolt.so against libtorch (LIBTORCH=dir: against that one)
	@scripts/lib

cuda: go ## build libmolt_cuda.so: CUDA devices and NCCL; fetches 2.5 GB (LIBTORCH=dir: takes them from there)
	@scripts/lib cuda
	go test -count=1 -tags cuda -run '^TestCUDA' ./torch

quickstart: go lib ## train a small model on this machine, a few minutes
	@scripts/fetch model >/dev/null
	@# An earlier quickstart is kept as runs/quickstart.old, unless it still runs: then molt says so.
	@[ ! -f runs/quickstart/lock ] || flock -n runs/quickstart/lock \
		sh -c 'rm -rf runs/quickstart.old && mv runs/quickstart runs/quickstart.old' || true
	go run ./cmd/molt -config configs/quickstart.toml

test: build ## vet and run every test, at most 15 minutes
	@scripts/fetch model >/dev/null
	@scripts/python testing >/dev/null
	go vet ./...
	go test -count=1 -timeout 15m ./...
	go -C examples vet ./...
	go -C examples test -count=1 ./...

test-text: go ## compare the tokenizers of six more models, which it fetches with npm
	@scripts/tokenizers >/dev/null
	@scripts/python testing >/dev/null
	go vet -tags text ./multimodal
	go test -count=1 -timeout 15m -tags text -run '^TestText' ./multimodal

lint: go ## formatting, vet, staticcheck, package layout
	@files="$$(gofmt -l .)"; [ -z "$$files" ] || { echo "not in gofmt's form:"; echo "$$files"; exit 1; }
	go vet ./...
	go run $(STATICCHECK) ./...
	go -C examples vet ./...
	cd examples && go run $(STATICCHECK) ./...
	go test -count=1 -run '^TestLayout' .

loc: ## lines per package; fails over the budget
	@scripts/loc

asan: build ## the binding's tests under the race detector, then with a libmolt under AddressSanitizer
	go test -race -count=1 -timeout 1h $(if $(SOAK),-tags soak) ./torch
	env -u MAKEFLAGS cmake -S . -B build/asan -DLIBTORCH="$$(scripts/fetch libtorch)" -DASAN=ON >/dev/null
	env -u MAKEFLAGS cmake --build build/asan -j2
	@# libmolt throws: the executable needs libstdc++ from the start. Go and libtorch leave allocations at exit.
	MOLT_LIB=$(CURDIR)/build/asan/lib/libmolt.so CGO_LDFLAGS="-O2 -g -Wl,--no-as-needed -lstdc++" \
		ASAN_OPTIONS=detect_leaks=0:quarantine_size_mb=8:allocator_may_return_null=1 \
		go test -asan -count=1 -timeout 1h $(if $(SOAK),-tags soak) ./torch ./torch/optim ./torch/model

bench: go lib ## paired benchmarks, a JSON line each (ONLY=name: some)
	@scripts/fetch model >/dev/null
	@scripts/peers
	@go run ./bench $(ONLY)

soak: build ## long stress, kills, real-model learning
	@scripts/fetch model >/dev/null
	go test -count=1 -timeout 6h -tags soak -run '^TestSoak' -v ./...

gotorch: go lib ## build gotorch from its module's sources; test the adapter that shares tensors with it
	@scripts/gotorch

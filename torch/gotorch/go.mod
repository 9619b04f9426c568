module github.com/molt-go/molt/torch/gotorch

go 1.26.0

require (
	github.com/google/go-cmp v0.7.0
	github.com/molt-go/molt v0.1.0
	github.com/wangkuiyi/gotorch v0.0.0-20201028015551-9afed2f3ad7b
)

require golang.org/x/sys v0.50.0 // indirect

replace github.com/molt-go/molt => ../..

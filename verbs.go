package molt

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/molt-go/molt/torch"
)

// verb is a command. Those that answer JSON lines call serve.
type verb struct {
	summary, format string // for -h
	run             func(ctx context.Context, o options, serve server) error
}

// server answers the lines of standard input, up to parallel at once.
type server func(ctx context.Context, parallel int, f answerer) error

var verbs = map[string]verb{
	"tokens":   {"shows text, conversations and token ids as each other", eachLine + tokensFormat, tokensVerb},
	"score":    {"gives the log-probs and entropies of given tokens", eachLine + scoreFormat, scoreVerb},
	"generate": {"continues token ids or conversations", eachLine + generateFormat, generateVerb},
	"serve":    {"continues token ids or text over HTTP, and takes new weights", serveFormat, serveVerb},
}

const eachLine = `Each JSON line on standard input is answered by one on standard output, in their order: a bad one by
{"error": ".."}, and then the exit code is 1.

`

// options are a verb's flags.
type options struct {
	model                                      string
	dtype                                      torch.DType
	threads, top, cacheMB, context, maxRunning int
	addr                                       string
	log                                        io.Writer // standard error
}

func runVerb(ctx context.Context, name string, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	v, ok := verbs[name]
	if !ok {
		return fmt.Errorf("unknown command %q; known: %s; molt help explains", name, strings.Join(slices.Sorted(maps.Keys(verbs)), ", "))
	}
	flags := flag.NewFlagSet("molt "+name, flag.ContinueOnError)
	flags.SetOutput(stderr)
	o := options{maxRunning: maxParallel, log: stderr}
	flags.StringVar(&o.model, "model", "", "a Hugging Face `folder` or a .gguf file; required")
	dtype := flags.String("dtype", "float32", "what the model computes in, float32 or bfloat16")
	flags.IntVar(&o.threads, "threads", runtime.GOMAXPROCS(0), "`cores` to use")
	switch name {
	case "score":
		flags.IntVar(&o.top, "top", 0, "give the `K` likeliest tokens at each position too")
	case "serve":
		flags.StringVar(&o.addr, "addr", "127.0.0.1:8000", "`host:port` to listen on; port 0 takes a free one")
		flags.IntVar(&o.context, "context", 0, "longest sequence in `tokens`, prompt included; 0: what the model and -cache allow")
		flags.IntVar(&o.maxRunning, "max-running", maxParallel, "`sequences` that are generated at once; others wait")
		fallthrough
	case "generate":
		flags.IntVar(&o.cacheMB, "cache", 1024, "`MB` for keys and values; they bound how long one sequence can get")
	}
	flags.Usage = func() {
		fmt.Fprintf(stderr, "molt %s %s.\n\n%s\n\nFlags:\n", name, v.summary, v.format)
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	var err error
	o.dtype, err = torch.ParseDType(*dtype)
	switch {
	case flags.NArg() > 0:
		return fmt.Errorf("unexpected argument %q; molt %s -h explains", flags.Arg(0), name)
	case o.model == "":
		return fmt.Errorf("-model is required: a Hugging Face folder or a .gguf file; molt %s -h explains", name)
	case err != nil || o.dtype != torch.Float32 && o.dtype != torch.BFloat16:
		return fmt.Errorf("-dtype is %q: must be float32 or bfloat16", *dtype)
	case o.context < 0 || o.maxRunning < 1:
		return fmt.Errorf("-context is %d, -max-running %d: must be at least 0 and 1", o.context, o.maxRunning)
	case o.threads < 1 || o.top < 0 || o.top > maxTop:
		return fmt.Errorf("-threads is %d, -top %d: must be at least 1, and from 0 to %d", o.threads, o.top, maxTop)
	}
	return v.run(ctx, o, func(ctx context.Context, parallel int, f answerer) error {
		err := serve(ctx, stdin, stdout, parallel, f)
		if errors.Is(err, syscall.EPIPE) { // nobody reads the answers any more
			return nil
		}
		return err
	})
}

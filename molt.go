// Package molt wires the parts into a run and is the command line: the only place that knows the trainer, the engine and
// the agents. A program of your own registers its agents, losses or estimators and then calls [Main].
package molt

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/molt-go/molt/trainer"
)

// Main is the command line. It ends the process: exit code 0 when the run is done, 1 after an error or a stop by a signal, which
// saves the state first; a second signal kills.
func Main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // from then on a signal has its usual effect
	err := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case errors.Is(err, context.Canceled):
		fmt.Fprintln(os.Stderr, "molt: stopped")
	case err != nil:
		fmt.Fprintln(os.Stderr, "molt:", err)
	default:
		return
	}
	os.Exit(1)
}

func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	if len(args) > 0 && args[0] == "help" {
		args = []string{"-h"}
	}
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		return runVerb(ctx, args[0], args[1:], stdin, stdout, stderr)
	}
	flags := flag.NewFlagSet("molt", flag.ContinueOnError)
	flags.SetOutput(stderr)
	path := flags.String("config", "", "the run, a TOML `file`; required")
	var overrides []string
	flags.Func("set", "override a value of the file: `table.key=value`, may be repeated", func(v string) error {
		overrides = append(overrides, v)
		return nil
	})
	flags.Usage = func() {
		fmt.Fprintln(stderr, "molt trains a language model by reinforcement learning, and shows what it reads and writes.\n\n"+
			"  molt -config run.toml [-set optim.lr=1e-5 …]")
		for _, name := range slices.Sorted(maps.Keys(verbs)) {
			fmt.Fprintf(stderr, "  molt %-8s -model DIR …   %s; -h explains\n", name, verbs[name].summary)
		}
		fmt.Fprintln(stderr, "\nFlags:")
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q; -h explains", flags.Arg(0))
	}
	if *path == "" {
		return errors.New("-config is required: molt -config run.toml; -h explains")
	}
	cfg := DefaultConfig()
	if err := trainer.DecodeTOML(*path, overrides, &cfg); err != nil {
		return err
	}
	return Run(ctx, cfg, os.Stdout)
}

package torch

/*
#cgo noescape mt_group_barrier
#cgo noescape mt_store_set
#cgo noescape mt_store_get
#include <stdlib.h>
#include "molt.h"
*/
import "C"

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// GroupConfig says who works together and where they meet.
type GroupConfig struct {
	Backend    string        // "gloo" (the default) for tensors on the CPU, "nccl" for CUDA
	Rank, Size int           // this process is number Rank of 0 … Size-1
	Address    string        // host:port of the key-value store that rank 0 runs
	Shared     string        // where something else runs that store, as torchrun does: a name of this start of the ranks
	Timeout    time.Duration // of joining, and of each operation; 0 is ten minutes
}

// GroupFromEnv reads what torchrun sets: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, and whether its agent runs the store.
// The error names the variable that is missing or wrong.
func GroupFromEnv() (c GroupConfig, err error) {
	number := func(name string) int {
		n, e := strconv.Atoi(os.Getenv(name))
		if e != nil || n < 0 {
			err = cmp.Or(err, fmt.Errorf("torch: %s=%q is not a number from 0 on; torchrun sets it", name, os.Getenv(name)))
		}
		return n
	}
	host := os.Getenv("MASTER_ADDR")
	c.Rank, c.Size = number("RANK"), number("WORLD_SIZE")
	c.Address = net.JoinHostPort(host, strconv.Itoa(number("MASTER_PORT")))
	if err == nil && host == "" {
		err = errors.New("torch: MASTER_ADDR is not set; torchrun sets it")
	}
	if err == nil && c.Rank >= c.Size {
		err = fmt.Errorf("torch: RANK=%d is not below WORLD_SIZE=%d", c.Rank, c.Size)
	}
	if os.Getenv("TORCHELASTIC_USE_AGENT_STORE") == "True" {
		c.Shared = "start" + os.Getenv("TORCHELASTIC_RESTART_COUNT")
	}
	return c, err
}

// Group joins ranks for collective operations, which are methods of [Scope]: every rank calls the same ones in the same order.
// A group does one operation at a time; goroutines that are independent use groups of their own. When a rank is dead or late an
// operation fails within the time-out, with an error that names it and the rank it failed on; the group is of no use after that.
type Group struct {
	config GroupConfig
	local  string        // this machine's address on the way to the store
	handle atomic.Uint64 // 0: closed
	mu     sync.Mutex    // held by an operation
	subs   map[string]int
}

// NewGroup joins the group and returns when all ranks have. Rank 0 runs the store, so it closes last where Set, Get or Sub are used.
func NewGroup(c GroupConfig) (*Group, error) {
	const year = 365 * 24 * time.Hour // c10d counts in nanoseconds from now
	c.Backend, c.Timeout = cmp.Or(c.Backend, "gloo"), min(year, cmp.Or(c.Timeout, 10*time.Minute))
	g := &Group{config: c, subs: map[string]int{}}
	host, number, err := net.SplitHostPort(c.Address)
	port, portErr := strconv.ParseUint(number, 10, 16)
	switch {
	case c.Backend != "gloo" && c.Backend != "nccl":
		return nil, g.failure("join", fmt.Sprintf("no backend %q; known: gloo, nccl", c.Backend))
	case c.Rank < 0 || c.Rank >= c.Size || c.Timeout < time.Millisecond:
		return nil, g.failure("join", fmt.Sprintf("a rank lies from 0 to size-1, a time-out is 1ms or more, not %v", c.Timeout))
	case err != nil || portErr != nil || host == "" || port == 0:
		return nil, g.failure("join", fmt.Sprintf("the address %q is not host:port", c.Address))
	}
	load := Load
	if c.Backend == "nccl" {
		load = Device("cuda:0").Check
	}
	if err := load(); err != nil {
		return nil, err
	}
	route, err := net.Dial("udp", c.Address) // sends nothing: it finds the interface that the other ranks can reach
	if err != nil {
		return nil, g.failure("join", err.Error())
	}
	g.local = route.LocalAddr().(*net.UDPAddr).IP.String()
	route.Close()
	deadline := time.Now().Add(c.Timeout)
	return g.joined("join", func() error {
		name := C.CString(host)
		defer C.free(unsafe.Pointer(name))
		var e *C.char
		store := C.mt_store_open(name, C.int32_t(port), C.int32_t(truth(c.Rank == 0 && c.Shared == "").v), milliseconds(c.Timeout), &e)
		if e != nil {
			return failed(e)
		}
		defer C.mt_group_close(store, &e)
		return g.open(store, "molt"+c.Shared, deadline)
	})
}

// joined is g after open, or an error; a group that joins after its caller has given up closes itself.
func (g *Group) joined(op string, open func() error) (*Group, error) {
	var late atomic.Bool
	err := g.bounded(op, func() error {
		err := open()
		if late.Load() {
			err = errors.Join(err, g.Close())
		}
		return err
	})
	if err != nil {
		late.Store(true)
		return nil, errors.Join(err, g.Close())
	}
	return g, nil
}

// open meets the other ranks in the parent's store, under a name that they share.
func (g *Group) open(parent C.mt_group, name string, deadline time.Time) error {
	backend, prefix, local := C.CString(g.config.Backend), C.CString(name), C.CString(g.local)
	defer C.free(unsafe.Pointer(backend))
	defer C.free(unsafe.Pointer(prefix))
	defer C.free(unsafe.Pointer(local))
	var e *C.char
	g.handle.Store(uint64(C.mt_group_open(parent, backend, prefix, local, C.int32_t(g.Rank()), C.int32_t(g.Size()),
		milliseconds(time.Until(deadline)), milliseconds(g.config.Timeout), &e)))
	return failed(e)
}

// Sub makes a group of some ranks, numbered by their place in the list. These and no others call it, with the same list.
func (g *Group) Sub(ranks ...int) (*Group, error) {
	sub := &Group{config: g.config, local: g.local, subs: map[string]int{}}
	sub.config.Rank, sub.config.Size = slices.Index(ranks, g.Rank()), len(ranks)
	sorted := slices.Compact(slices.Sorted(slices.Values(ranks)))
	if sub.Rank() < 0 || len(sorted) < len(ranks) || sorted[0] < 0 || sorted[len(ranks)-1] >= g.Size() {
		return nil, g.failure("sub-group", fmt.Sprintf("ranks %v must hold this one, each once, all from 0 to %d", ranks, g.Size()-1))
	}
	name, deadline := fmt.Sprint("sub-group ", ranks), time.Now().Add(g.config.Timeout)
	g.mu.Lock()
	g.subs[name]++
	unique := fmt.Sprint(name, g.subs[name])
	g.mu.Unlock()
	return sub.joined(name, func() error { return sub.open(g.c(), unique, deadline) })
}

// Close leaves the group. Where an operation is under way on another goroutine, the group ends with it.
func (g *Group) Close() error {
	var e *C.char
	if h := C.mt_group(g.handle.Swap(0)); h != 0 {
		C.mt_group_close(h, &e)
	}
	return failed(e)
}

// Rank is this process's number in the group, from 0 on.
func (g *Group) Rank() int { return g.config.Rank }

// Size is the number of ranks.
func (g *Group) Size() int { return g.config.Size }

// Barrier returns when every rank has called it.
func (g *Group) Barrier() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	var e *C.char
	if C.mt_group_barrier(g.c(), &e); e != nil {
		return g.failure("barrier", message(e))
	}
	return nil
}

// Set puts a value of at most 8 MB into the group's store, for every rank of the group to read.
func (g *Group) Set(key string, value []byte) error {
	if len(value) > maxValue {
		return g.failure("set "+key, fmt.Sprintf("the value is %d bytes long, the store takes %d", len(value), maxValue))
	}
	return g.keyed("set", key, func(k *C.char) (e *C.char) {
		C.mt_store_set(g.c(), k, unsafe.Pointer(unsafe.SliceData(value)), C.int64_t(len(value)), &e)
		return e
	})
}

// maxValue is what c10d's server takes: it drops the connection of who sends more.
const maxValue = 8 << 20

// Get reads a value of the group's store; it waits until a rank has set it.
func (g *Group) Get(key string) ([]byte, error) {
	var value []byte
	err := g.keyed("get", key, func(k *C.char) (e *C.char) {
		var n C.int64_t
		p := C.mt_store_get(g.c(), k, &n, &e)
		defer C.free(p)
		value = C.GoBytes(p, C.int(n))
		return e
	})
	if err != nil {
		return nil, err
	}
	return value, nil
}

func (g *Group) keyed(op, key string, f func(key *C.char) (e *C.char)) error {
	return g.bounded(op+" "+key, func() error {
		k := C.CString(strconv.Quote(key)) // quoted, since a C string holds no NUL
		defer C.free(unsafe.Pointer(k))
		return failed(f(k))
	})
}

// bounded runs f, which talks to the store. c10d's client does not time everything out itself: f is left behind when it hangs.
func (g *Group) bounded(op string, f func() error) (err error) {
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err = <-done:
	case <-time.After(g.config.Timeout + time.Second):
		err = fmt.Errorf("no answer from the store at %s within %v", g.config.Address, g.config.Timeout)
	}
	if err != nil {
		return g.failure(op, err.Error())
	}
	return nil
}

func (g *Group) c() C.mt_group { return C.mt_group(g.handle.Load()) }

func (g *Group) failure(op, msg string) *Error {
	return &Error{Op: fmt.Sprintf("%s on rank %d of %d", op, g.Rank(), g.Size()), Msg: msg}
}

func failed(e *C.char) error {
	if e == nil {
		return nil
	}
	return errors.New(message(e))
}

func milliseconds(d time.Duration) C.int64_t { return C.int64_t(d.Milliseconds()) }

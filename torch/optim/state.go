package optim

import (
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"strings"
	"unsafe"

	"github.com/molt-go/molt/torch"
)

// Save writes o's state as a safetensors file.
func Save(path string, o Optimizer) error {
	var entries []torch.Entry
	for _, t := range o.State() {
		write := func(w io.Writer) error { return binary.Write(w, binary.LittleEndian, torch.Values[float32](t.Tensor)) }
		entries = append(entries, torch.Entry{Name: t.Name, DType: torch.Float32, Shape: t.Tensor.Shape(), Write: write})
	}
	return torch.WriteSafeTensors(path, entries, nil)
}

// Load reads a state that Save wrote into o. Every tensor must be there with its shape, and no other; otherwise nothing is read
// and the error names those that differ.
func Load(path string, o Optimizer) error {
	f, err := torch.OpenSafeTensors(path)
	if err != nil {
		return err
	}
	defer f.Close()
	var faults []string
	state, known := o.State(), map[string]bool{}
	for _, t := range state {
		known[t.Name] = true
		e, ok := f.Lookup(t.Name)
		switch {
		case !ok:
			faults = append(faults, t.Name+" is missing")
		case e.DType != torch.Float32 || !slices.Equal(e.Shape, t.Tensor.Shape()):
			faults = append(faults, fmt.Sprintf("%s is %v%v, want %v", t.Name, e.DType, e.Shape, t.Tensor))
		}
	}
	for _, name := range f.Names() {
		if !known[name] {
			faults = append(faults, name+" is of no parameter")
		}
	}
	if n := len(faults); n > 0 {
		const shown = 6
		if n > shown {
			faults = append(faults[:shown], fmt.Sprintf("and %d more", n-shown))
		}
		return fmt.Errorf("optim: %s is not the state of this optimizer and these parameters: %s", path, strings.Join(faults, ", "))
	}
	for _, t := range state {
		e, _ := f.Lookup(t.Name)
		torch.WriteBytes(t.Tensor, e.DType, unsafe.Pointer(unsafe.SliceData(e.Data)), t.Tensor.Numel())
	}
	return nil
}

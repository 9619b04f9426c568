// Command save loads a Hugging Face folder or a .gguf file and saves it as a Hugging Face folder of float32 weights:
//
//	cd examples && go run ./save MODEL FOLDER
package main

import (
	"fmt"
	"os"

	"github.com/molt-go/molt/torch"
	"github.com/molt-go/molt/torch/model"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: save MODEL FOLDER")
		os.Exit(2)
	}
	err := torch.Do(1, func(s *torch.Scope) error {
		m, err := model.Load(s, os.Args[1], torch.Float32)
		if err != nil {
			return err
		}
		return m.Save(os.Args[2])
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// Command molt trains language models by reinforcement learning, as a TOML file says.
package main

import "github.com/molt-go/molt"

func main() { molt.Main() }

package main

import (
	"fmt"
	"io"

	"github.com/portico-llm/portico/internal/config"
)

// writeHelp prints all there is to say about the command line. The settings themselves come from the configuration's
// own table, so the two can't differ.
func writeHelp(w io.Writer) {
	fmt.Fprint(w, `Portico: an OpenAI-compatible frontend for NVIDIA Dynamo workers.

Usage:
  frontend [flags]           serve
  frontend --embedded        serve a simulated model, with nothing else to install
  frontend render [flags]    print the prompt and token ids of a chat request
  frontend parse [flags]     take a model's raw text apart into thoughts, content and tool calls
  frontend image [flags]     say what a model's image processor makes of files

Every flag is also an environment variable (given below) and a key of the file that --config names. A flag wins over
the environment, the environment over the file.

  --help, -h                 this text
  --version                  the program's version
`)
	fmt.Fprint(w, config.Help())
	fmt.Fprintf(w, "\nAccepted for Dynamo's sake, without effect (one warning each):\n%s", config.IgnoredHelp())
}

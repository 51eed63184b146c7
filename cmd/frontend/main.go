// Command frontend serves OpenAI's API in front of Dynamo workers.
//
//	frontend [flags]           serve
//	frontend render [flags]    print the prompt and token ids of a chat request (see frontend render --help)
//	frontend parse [flags]     take a model's raw text apart (see frontend parse --help)
//	frontend image [flags]     say what a model's processor makes of image files (see frontend image --help)
//
// The exit code is 0 after a clean stop, 1 after a failure and 2 for a wrong command line, variable or file.
package main

import "os"

func main() {
	p := program{serve: run, render: runRender, parse: runParse, image: runImage, stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr}
	os.Exit(p.main(os.Args[1:], os.Environ()))
}

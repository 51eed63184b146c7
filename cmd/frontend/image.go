package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/multimodal"
	"github.com/portico-llm/portico/internal/multimodal/decode"
	"github.com/portico-llm/portico/internal/multimodal/item"
	"github.com/portico-llm/portico/internal/multimodal/process"
	"github.com/portico-llm/portico/internal/prepost/executor"
	"github.com/portico-llm/portico/internal/prepost/tokenizer"
)

// imageUsage is the text of image --help, above the flags.
const imageUsage = `Usage:
  frontend image --model-path DIR [flags] FILE ...     what a model's image processor makes of files

For each file a line of JSON is printed: its format and size, the tensors with their SHA-256, how many placeholder tokens
it has in a prompt, and its identity; or the error that a client would get. A model whose items can't be sent says why
(not_sent): the server then leaves its images' URLs to the workers. Without --model-path files are only decoded.
The other flags are the server's --mm-engine-version and --mm-image-..., for this model. Exit code 1 when a file or the
model can't be used, 2 for wrong flags.

Flags:
`

// imageTimeout bounds what the sub-command does.
const imageTimeout = 5 * time.Minute

// imageReport is what is printed of a file.
type imageReport struct {
	File    string            `json:"file"`
	Error   string            `json:"error,omitempty"`
	Format  multimodal.Format `json:"format,omitempty"`
	Width   int               `json:"width,omitempty"` // upright
	Height  int               `json:"height,omitempty"`
	Pixels  string            `json:"pixels_sha256,omitempty"` // RGB rows; only without a model
	Name    string            `json:"processor,omitempty"`
	Tensors []tensorReport    `json:"tensors,omitempty"`
	Grid    *[3]int           `json:"grid,omitempty"` // frames, rows, columns of patches
	Tokens  int               `json:"placeholder_tokens,omitempty"`
	Embeds  int               `json:"embeddings,omitempty"` // how many of these are replaced by embeddings
	Bytes   int               `json:"item_bytes,omitempty"`
	ID      string            `json:"identity,omitempty"`
	Unsent  string            `json:"not_sent,omitempty"` // why the server leaves the image's URL to the worker
}

// tensorReport is what is printed of a tensor.
type tensorReport struct {
	Name   string           `json:"name"`
	Shape  []int            `json:"shape"`
	DType  multimodal.DType `json:"dtype"`
	SHA256 string           `json:"sha256"` // little-endian, C order
}

// runImage prints what becomes of image files. It returns the exit code.
func runImage(args []string, stdout, stderr io.Writer) int {
	var (
		modelPath             string
		backend, scale, dtype string
		settings              process.Settings
	)
	set := newFlagSet("image")
	set.StringVar(&modelPath, "model-path", "", "folder with the model's files")
	set.StringVar(&settings.Engine, "engine-version", process.DefaultEngine, "version of vLLM")
	set.StringVar(&backend, "image-backend", "", "torchvision, pillow or pillow12; default: torchvision")
	set.StringVar(&scale, "image-scale", "", "bytes or normalized; default: by architecture and engine version")
	set.StringVar(&dtype, "image-dtype", "", "uint8, float16, bfloat16 or float32; default: by scale and model")
	if err := parseFlagSet(set, args, true, imageUsage, stdout); err != nil {
		return flagsExit("image", err, stderr)
	}
	if set.NArg() == 0 {
		return flagsExit("image", errors.New("give at least one file"), stderr)
	}
	settings.Backend, settings.Scale, settings.DType = process.Backend(backend), process.Scale(scale), multimodal.DType(dtype)
	ctx, cancel := context.WithTimeout(context.Background(), imageTimeout)
	defer cancel()
	pool := decode.New(decode.Options{})
	defer pool.Close()
	var processor *process.Processor
	if modelPath != "" {
		var err error
		if processor, err = openProcessor(ctx, modelPath, settings, pool); err != nil {
			fmt.Fprintf(stderr, "frontend image: %v\n", err)
			return exitFailure
		}
	}
	out, code := jsonOutput(stdout), exitOK
	for _, name := range set.Args() {
		report, err := reportImage(ctx, name, pool, processor)
		if err != nil {
			report.Error, code = err.Error(), exitFailure
			// What a client is told, and nothing of the cause behind it.
			if f, ok := errors.AsType[*fault.Error](err); ok {
				report.Error = f.Message
			}
		}
		if err := out.Encode(report); err != nil {
			fmt.Fprintf(stderr, "frontend image: %v\n", err)
			return exitFailure
		}
	}
	return code
}

// openProcessor reads a model's folder. The tokenizer is only there for models whose processor asks for it.
func openProcessor(ctx context.Context, dir string, s process.Settings, pool *decode.Pool) (*process.Processor, error) {
	opts, err := process.ReadFolder(dir)
	if err != nil {
		return nil, err
	}
	opts.Settings, opts.Pool = s, pool
	if text, err := os.ReadFile(filepath.Join(dir, "tokenizer.json")); err == nil {
		log := slog.New(slog.DiscardHandler)
		pools := executor.NewRegistry(executor.Options{Workers: 1, Log: log})
		defer func() { _ = pools.Close() }() // it only reads, and the process ends soon after
		t, err := tokenizer.Load(ctx, tokenizer.Options{JSON: text, Name: filepath.Base(dir), Registry: pools, Log: log})
		if err != nil {
			return nil, fmt.Errorf("tokenizer: %w", err)
		}
		defer t.Close()
		opts.TokenID = t.TokenID
		opts.Encode = func(text string) ([]uint32, error) { return t.Encode(ctx, text, false) }
	}
	return process.New(opts)
}

// reportImage processes one file. What is known of it before an error is part of the report.
func reportImage(ctx context.Context, name string, pool *decode.Pool, p *process.Processor) (*imageReport, error) {
	report := &imageReport{File: name}
	data, err := os.ReadFile(name)
	if err != nil {
		return report, err
	}
	file := multimodal.File{Path: name, Data: data}
	h, err := pool.Header(file)
	if err != nil {
		return report, err
	}
	report.Format, report.Width, report.Height = h.Format, h.Width, h.Height
	if p == nil {
		pixels, err := pool.Decode(ctx, file, nil)
		if err == nil {
			report.Pixels = hexSum(pixels.Data)
		}
		return report, err
	}
	plan, err := p.Plan(h)
	if err != nil {
		return report, err
	}
	it, err := p.Process(ctx, file, plan, nil)
	if err != nil {
		return report, err
	}
	tensors, err := item.Decode(it.Blob)
	if err != nil {
		return report, err
	}
	for _, t := range tensors {
		report.Tensors = append(report.Tensors, tensorReport{t.Name, append([]int{}, t.Shape...), t.DType, hexSum(t.Data)})
	}
	if plan.Grid != [3]int{} {
		report.Grid = &plan.Grid
	}
	report.Name, report.Tokens, report.Embeds = p.Name(), plan.Tokens, plan.Embeds
	report.Bytes, report.ID = plan.Size, it.Identity
	if err := p.Sendable(); err != nil {
		report.Unsent = err.Error()
	}
	return report, nil
}

func hexSum(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

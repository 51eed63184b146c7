package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/portico-llm/portico/internal/lifecycle"
	"github.com/portico-llm/portico/internal/multimodal/nixl"
	"github.com/portico-llm/portico/internal/simworker"
)

// withImages has an engine look at images, where the settings say so. What it needs runs in g, whose end is waited for
// before the result's second part is called. Without NIXL's library images come through shared memory alone.
func (s *settings) withImages(g *lifecycle.Group, engine simworker.Engine, log *slog.Logger) (simworker.Engine, func() error, error) {
	nothing := func() error { return nil }
	if s.images == "" {
		return engine, nothing, nil
	}
	mode, delay, err := simworker.ParseImageMode(s.images)
	if err != nil {
		return nil, nothing, err
	}
	b, err := os.ReadFile(filepath.Join(s.modelPath, "tokenizer.json"))
	if err != nil {
		return nil, nothing, fmt.Errorf("vocabulary: %w", err)
	}
	v, err := simworker.ParseVocabulary(b)
	if err != nil {
		return nil, nothing, err
	}
	images := &simworker.Images{
		Next: engine, Encode: v.Encode, Delay: delay, Late: g,
		Mode: func(*simworker.Request) simworker.ImageMode { return mode },
	}
	agent, err := openAgent(s.nixl, s.python)
	if err != nil {
		log.Warn("NIXL can't be used: images are read from shared memory alone", "error", err)
		return images, nothing, nil
	}
	images.Read = agent.Read
	return images, agent.Close, nil
}

// openAgent starts an agent with the library at path, or with the first one that is found.
func openAgent(path, python string) (*nixl.Agent, error) {
	paths := []string{path}
	if path == "" {
		paths = nixl.Find(python)
	}
	var errs []error
	for _, p := range paths {
		lib, err := nixl.Open(p)
		if err == nil {
			return nixl.New(lib, nixl.Options{})
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

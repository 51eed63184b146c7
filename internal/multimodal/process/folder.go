package process

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// ReadFolder reads a model's configs from its folder into Options. Only config.json has to be there.
func ReadFolder(dir string) (Options, error) {
	var opts Options
	for name, to := range map[string]*[]byte{
		"config.json": &opts.Config, "preprocessor_config.json": &opts.Preprocessor, "processor_config.json": &opts.Processor,
	} {
		var err error
		*to, err = readFile(dir, name)
		if err != nil && (name == "config.json" || !errors.Is(err, fs.ErrNotExist)) {
			return opts, err
		}
	}
	return opts, nil
}

// preprocessor returns the image processor's settings: those of preprocessor_config.json or, as newer versions of
// transformers write them, a part of processor_config.json.
func (o *Options) preprocessor() (pre preprocessor, err error) {
	if len(o.Preprocessor) > 0 {
		if err = json.Unmarshal(o.Preprocessor, &pre); err != nil {
			err = fmt.Errorf("preprocessor_config.json: %w", err)
		}
		return pre, err
	}
	var whole struct {
		Image *preprocessor `json:"image_processor"`
	}
	if len(o.Processor) > 0 {
		if err = json.Unmarshal(o.Processor, &whole); err != nil {
			return pre, fmt.Errorf("processor_config.json: %w", err)
		}
	}
	if whole.Image == nil {
		return pre, fmt.Errorf("%w: the model has no preprocessor_config.json", ErrUnknown)
	}
	return *whole.Image, nil
}

// maxConfig bounds a config file.
const maxConfig = 16 << 20

func readFile(dir, name string) ([]byte, error) {
	path := filepath.Join(dir, name)
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("model file: %w", err)
	}
	if info.Size() > maxConfig {
		return nil, fmt.Errorf("model file %s: %d bytes are no config", path, info.Size())
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("model file: %w", err)
	}
	return data, nil
}

package modelcard

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/zeebo/blake3"

	"github.com/portico-llm/portico/api/worker"
)

// defaultBlockSize is the size of KV cache blocks that engines start with.
const defaultBlockSize = 16

// FromFolder makes the card of a model in a local folder, as a worker that serves it would. An empty name is the
// folder's. The folder must hold a tokenizer; the other files are optional.
func FromFolder(dir, name string) (*worker.Card, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("model folder %s: %w", dir, err)
	}
	if name == "" {
		name = filepath.Base(dir)
	}
	card := &worker.Card{
		DisplayName: name, Slug: slug(name), SourcePath: dir,
		KVCacheBlockSize: defaultBlockSize, ModelType: "Completions", ModelInput: "Tokens", WorkerType: "aggregated",
	}
	files := map[string]*found{}
	for _, want := range []struct {
		to         *worker.CardFile
		kind, base string
	}{
		{&card.ModelInfo, worker.KindConfig, "config.json"},
		{&card.Tokenizer, worker.KindTokenizer, "tokenizer.json"},
		{&card.Tokenizer, worker.KindTiktoken, "tiktoken.model"},
		{&card.Formatter, worker.KindTokenizerConfig, "tokenizer_config.json"},
		{&card.ChatTemplate, worker.KindChatTemplate, "chat_template.jinja"},
		{&card.ChatTemplate, worker.KindChatTemplateJSON, "chat_template.json"},
		{&card.GenConfig, worker.KindGenerationConfig, "generation_config.json"},
	} {
		if !want.to.IsZero() {
			continue
		}
		file, err := sumFile(filepath.Join(dir, want.base), want.kind, want.to)
		if err != nil {
			return nil, err
		}
		files[want.kind] = file
	}
	if card.Tokenizer.IsZero() {
		return nil, fmt.Errorf("model folder %s: no tokenizer.json and no tiktoken.model", dir)
	}
	return card, describe(card, files)
}

// sumFile fills a card's file in; a file that isn't there is left out.
func sumFile(place, kind string, to *worker.CardFile) (*found, error) {
	data, err := readLocal(place)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("model file %s: %w", place, err)
	}
	sum, size := blake3.Sum256(data), uint64(len(data))
	*to = worker.CardFile{Kind: kind, File: worker.CheckedFile{
		Path: place, Checksum: "blake3:" + hex.EncodeToString(sum[:]), Size: &size,
	}}
	return &found{name: place, kind: kind, local: place, data: data}, nil
}

// describe fills in what the files say of the model.
func describe(card *worker.Card, files map[string]*found) error {
	model, settings := &modelConfig{}, &tokenizerConfig{}
	if err := errors.Join(files[worker.KindConfig].decode(model), files[worker.KindTokenizerConfig].decode(settings)); err != nil {
		return err
	}
	if n := model.maxContext(settings); n > 0 {
		card.ArchitecturalMaxContextLength = &n
		card.ContextLength = &n
	}
	if !card.ChatTemplate.IsZero() || settings.templates.def != "" {
		card.ModelType = "Chat | Completions"
	}
	return nil
}

// slug is a name in lower case with everything but letters, digits, - and _ replaced.
func slug(name string) string {
	s := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' || r == '_' {
			return r
		}
		return '_'
	}, strings.ToLower(name))
	return strings.TrimLeft(s, "_")
}

// Sum identifies a card's content: workers whose cards have one sum serve the same model the same way.
func Sum(card *worker.Card) string {
	h := blake3.New()
	text := func(parts ...string) {
		for _, part := range parts {
			_, _ = h.WriteString(part)
		}
	}
	number := func(n uint32) { _, _ = h.Write(binary.BigEndian.AppendUint32(nil, n)) }
	text(card.DisplayName, card.SourcePath)
	for _, file := range []*worker.CardFile{&card.ModelInfo, &card.Tokenizer, &card.Formatter, &card.ChatTemplate, &card.GenConfig} {
		if !file.IsZero() {
			text(file.File.Checksum)
		}
	}
	extra := slices.SortedFunc(slices.Values(card.ExtraFiles), func(a, b worker.CheckedFile) int { return strings.Compare(a.Path, b.Path) })
	for _, file := range extra {
		text(filepath.Base(file.Path), "\x00", file.Checksum)
	}
	number(card.EffectiveContextLength())
	number(card.KVCacheBlockSize)
	_, _ = h.Write([]byte{roleByte(card.WorkerType)})
	number(uint32(len(card.Needs)))
	for _, alternative := range card.Needs {
		number(uint32(len(alternative)))
		for _, role := range alternative {
			_, _ = h.Write([]byte{roleByte(role)})
		}
	}
	if len(card.RouterConfig) > 0 {
		sum := blake3.Sum256(card.RouterConfig)
		_, _ = h.Write(sum[:])
	}
	if len(card.Aliases) > 0 {
		number(uint32(len(card.Aliases)))
		for _, alias := range card.Aliases {
			number(uint32(len(alias)))
			text(alias)
		}
	}
	return hex.EncodeToString(h.Sum(nil))
}

// roleByte is a worker type as it goes into the sum.
func roleByte(role string) byte {
	return byte(slices.Index([]string{"", "prefill", "decode", "encode", "aggregated"}, role))
}

package modelcard

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/zeebo/blake3"

	"github.com/portico-llm/portico/api/worker"
)

// defaultBlockSize is the size of KV cache blocks that engines start with. It only matters to routers that count
// blocks, and for equal sums.
const defaultBlockSize = 16

// FromFolder makes the card of a model in a local folder, as a worker that serves it would. An empty name is the
// folder's. The folder must hold a tokenizer; the other files are optional. It reads the files whole, for their sums.
// The card names them by absolute paths, so that it works from any folder.
func FromFolder(dir, name string) (*worker.Card, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("model folder %s: %w", dir, err)
	}
	// A wrong path is told as such, and not as the first file that is missing below it.
	switch info, err := os.Stat(dir); {
	case err != nil:
		return nil, fmt.Errorf("model folder: %w", err)
	case !info.IsDir():
		return nil, fmt.Errorf("model folder %s: not a folder", dir)
	}
	if name == "" {
		name = filepath.Base(dir)
	}
	card := &worker.Card{
		DisplayName: name, Slug: slug(name), SourcePath: dir,
		// What every model can do; describe adds chat where there is a template.
		KVCacheBlockSize: defaultBlockSize, ModelType: "Completions", ModelInput: "Tokens", WorkerType: "aggregated",
	}
	// The names are those every Hugging Face repository uses; of two tokenizers and of two templates the first counts.
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
		// Another name has been found for the same purpose.
		if !want.to.IsZero() {
			continue
		}
		file, err := sumFile(filepath.Join(dir, want.base), want.kind, want.to)
		if err != nil {
			return nil, err
		}
		// Nil when it isn't there, which later readers take as an empty file.
		files[want.kind] = file
	}
	// Without one there are no tokens, and nothing to serve.
	if card.Tokenizer.IsZero() {
		return nil, fmt.Errorf("model folder %s: no tokenizer.json and no tiktoken.model", dir)
	}
	return card, describe(card, files)
}

// sumFile fills a card's file in; a file that isn't there is left out. The size goes beside the sum, so that whoever
// downloads the file knows when to stop.
func sumFile(place, kind string, to *worker.CardFile) (*found, error) {
	data, err := readLocal(place)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("model file %s: %w", place, err)
	}
	// As workers write it: the sum's name, a colon, and lower-case hexadecimal digits.
	sum, size := blake3.Sum256(data), uint64(len(data))
	*to = worker.CardFile{Kind: kind, File: worker.CheckedFile{
		Path: place, Checksum: "blake3:" + hex.EncodeToString(sum[:]), Size: &size,
	}}
	return &found{name: place, kind: kind, local: place, data: data}, nil
}

// describe fills in what the files say of the model. Without a template a model completes text and takes no
// conversation.
func describe(card *worker.Card, files map[string]*found) error {
	// Files that are missing leave these as they are: nothing is known.
	model, settings := &modelConfig{}, &tokenizerConfig{}
	err := errors.Join(files[worker.KindConfig].decode(model), files[worker.KindTokenizerConfig].decode(settings))
	if err != nil {
		return err
	}
	// A worker may serve less than the architecture allows; a folder says nothing of that.
	if n := model.maxContext(settings); n > 0 {
		card.ArchitecturalMaxContextLength = &n
		card.ContextLength = &n
	}
	if !card.ChatTemplate.IsZero() || settings.templates.def != "" {
		card.ModelType = "Chat | Completions"
	}
	return nil
}

// slug is a name in lower case with everything but letters, digits, - and _ replaced. It is how Dynamo names models
// where only such characters are allowed, in metrics and subjects for instance.
func slug(name string) string {
	s := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' || r == '_' {
			return r
		}
		return '_'
	}, strings.ToLower(name))
	return strings.TrimLeft(s, "_")
}

// Sum identifies a card's content: workers whose cards have one sum serve the same model the same way. Taints, user
// data and what the engine reports of itself don't count: they may differ between equal workers.
func Sum(card *worker.Card) string {
	// The bytes and their order are those of Dynamo's mdcsum, which requests carry to workers.
	h := blake3.New()
	// Hashes never fail to be written to.
	text := func(parts ...string) {
		for _, part := range parts {
			_, _ = h.WriteString(part)
		}
	}
	// Lengths and counts are four bytes, big-endian.
	number := func(n uint32) { _, _ = h.Write(binary.BigEndian.AppendUint32(nil, n)) }
	text(card.DisplayName, card.SourcePath)
	// Sums, not paths: workers on different machines keep the same files in different places.
	for _, file := range []*worker.CardFile{
		&card.ModelInfo, &card.Tokenizer, &card.Formatter, &card.ChatTemplate, &card.GenConfig,
	} {
		if !file.IsZero() {
			text(file.File.Checksum)
		}
	}
	// In the order of their paths, whatever order the worker lists them in.
	extra := slices.SortedFunc(slices.Values(card.ExtraFiles), func(a, b worker.CheckedFile) int {
		return strings.Compare(a.Path, b.Path)
	})
	for _, file := range extra {
		text(filepath.Base(file.Path), "\x00", file.Checksum)
	}
	number(card.EffectiveContextLength())
	number(card.KVCacheBlockSize)
	// One byte for the type, then the needs, each with its number of parts ahead: no two lists write the same bytes.
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
	// Optional parts are left out when empty, rather than counted as none.
	if len(card.Aliases) > 0 {
		number(uint32(len(card.Aliases)))
		for _, alias := range card.Aliases {
			number(uint32(len(alias)))
			text(alias)
		}
	}
	return hex.EncodeToString(h.Sum(nil))
}

// roleByte is a worker type as it goes into the sum. An unknown one is 255.
func roleByte(role string) byte {
	return byte(slices.Index([]string{"", "prefill", "decode", "encode", "aggregated"}, role))
}

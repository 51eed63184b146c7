// Package templates holds the chat-template goldens: real templates, conversations, and what transformers makes of
// them. README.md says where they come from. Tests read them; nothing else does.
package templates

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	_ "embed" // the goldens
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"time"
)

// Now is what the goldens' clock says: templates may write the date, and were rendered at this one.
func Now() time.Time { return time.Date(2025, 7, 26, 12, 0, 0, 0, time.UTC) }

// Result is what the reference made of one render: an output, or an error. One of them is nil.
type Result struct {
	Output *string `json:"output"`
	Error  *struct {
		Type    string `json:"type"`
		Message string `json:"message"`
	} `json:"error"`
}

// Template is one golden template: a model's, as its publisher wrote it.
type Template struct {
	Name, Source  string
	SHA256        string            // of the source without surrounding white space
	SpecialTokens map[string]string // by the variable that a template knows them by, such as bos_token
	Expected      map[string]Result // by the conversation's name
}

// Set is all goldens. It is the caller's own: nothing is shared between two calls of Load.
type Set struct {
	Templates     []Template
	Conversations map[string]json.RawMessage // an object of template variables each
}

// Arguments returns a conversation's variables with the template's special tokens, as one JSON object: what a server
// would give to the template.
func (s *Set) Arguments(t *Template, conversation string) (json.RawMessage, error) {
	body := bytes.TrimSpace(s.Conversations[conversation])
	tokens, err := json.Marshal(t.SpecialTokens)
	if err != nil {
		return nil, fmt.Errorf("%s: special tokens: %w", t.Name, err)
	}
	if string(tokens) == "{}" || string(tokens) == "null" {
		return body, nil
	}
	// The two objects are joined as text, which keeps the order of the conversation's keys and its numbers as they
	// stand.
	return bytes.Join([][]byte{body[:len(body)-1], tokens[1:]}, []byte{','}), nil
}

// Case is one of the small templates of semantics.json, each about one point of the language.
type Case struct {
	Template string `json:"template"` // source
	Result
}

// Semantics is semantics.json.
type Semantics struct {
	Arguments json.RawMessage `json:"arguments"` // the same variables for every case
	Cases     []Case          `json:"cases"`
}

// The goldens are part of the test binaries, which then need no path to this folder.
//
//go:embed templates.tar.gz
var archive []byte

//go:embed manifest.json
var manifest []byte

//go:embed conversations.json
var conversations []byte

//go:embed semantics.json
var semantics []byte

// LoadSemantics reads semantics.json.
func LoadSemantics() (*Semantics, error) {
	s := new(Semantics)
	if err := json.Unmarshal(semantics, s); err != nil {
		return nil, fmt.Errorf("semantics.json: %w", err)
	}
	return s, nil
}

// Load reads the goldens, in the order of the manifest. A template without what the reference made of it is an error.
func Load() (*Set, error) {
	files, err := unpack()
	if err != nil {
		return nil, fmt.Errorf("templates.tar.gz: %w", err)
	}
	s := &Set{}
	if err := json.Unmarshal(conversations, &s.Conversations); err != nil {
		return nil, fmt.Errorf("conversations.json: %w", err)
	}
	var list struct {
		Templates []struct{ Name, SHA256 string }
	}
	if err := json.Unmarshal(manifest, &list); err != nil {
		return nil, fmt.Errorf("manifest.json: %w", err)
	}
	for _, entry := range list.Templates {
		t := Template{Name: entry.Name, SHA256: entry.SHA256, Source: files[path.Join("templates", entry.Name+".jinja")]}
		var expected struct {
			SpecialTokens map[string]string `json:"special_tokens"`
			Expected      map[string]Result `json:"expected"`
		}
		// A file that isn't there reads as empty, which is no JSON.
		if err := json.Unmarshal([]byte(files[path.Join("expected", entry.Name+".json")]), &expected); err != nil {
			return nil, fmt.Errorf("%s: %w", entry.Name, err)
		}
		t.SpecialTokens, t.Expected = expected.SpecialTokens, expected.Expected
		s.Templates = append(s.Templates, t)
	}
	return s, nil
}

// Find returns a template by its name, or nil.
func (s *Set) Find(name string) *Template {
	for i := range s.Templates {
		if s.Templates[i].Name == name {
			return &s.Templates[i]
		}
	}
	return nil
}

// unpack returns the files of the archive by their names. They are few and small enough to be held at once.
func unpack() (map[string]string, error) {
	zr, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	files := map[string]string{}
	tr := tar.NewReader(zr)
	for {
		header, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, fmt.Errorf("next file: %w", err)
		}
		var text strings.Builder
		if _, err := io.Copy(&text, tr); err != nil {
			return nil, fmt.Errorf("%s: %w", header.Name, err)
		}
		files[header.Name] = text.String()
	}
}

package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"
)

// readYAML reads a file of key: value. A list may stand for a list with commas. Problems name the file and the line;
// values are checked when they are applied, like all others.
func (c *Config) readYAML(name string, readFile func(string) ([]byte, error)) ([]assignment, []Problem) {
	fail := func(line int, message string) []Problem {
		return []Problem{{Key: position(name, line), Message: message}}
	}
	data, err := readFile(name)
	if err != nil {
		return nil, []Problem{{Key: "--config", Value: name, Message: err.Error()}}
	}
	// Nodes rather than a struct: they know their lines, and a value stays as it was written.
	var document yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	if err := decoder.Decode(&document); errors.Is(err, io.EOF) {
		return nil, nil // nothing but comments
	} else if err != nil {
		return nil, fail(0, err.Error())
	}
	if err := decoder.Decode(&yaml.Node{}); !errors.Is(err, io.EOF) {
		return nil, fail(0, "one document is allowed")
	}
	root := document.Content[0]
	if root.Tag == "!!null" {
		return nil, nil
	}
	if root.Kind != yaml.MappingNode {
		return nil, fail(root.Line, "keys and values are allowed")
	}
	return c.readMapping(name, root)
}

// readMapping turns the keys of the file into assignments. A mapping's content alternates between keys and values.
func (c *Config) readMapping(name string, root *yaml.Node) (assignments []assignment, problems []Problem) {
	seen := make(map[string]bool)
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, node := root.Content[i], root.Content[i+1]
		at := position(name, key.Line)
		s, ok := c.byKey[key.Value]
		switch {
		case !ok:
			p := Problem{Key: at, Value: key.Value, Message: "unknown key"}
			if near := nearest(key.Value, c.keys()); near != "" {
				p.Message += "; did you mean " + near + "?"
			}
			problems = append(problems, p)
			continue
		case key.Value == "config":
			problems = append(problems, Problem{Key: at, Value: key.Value, Message: "a file can't name another"})
			continue
		case seen[key.Value]:
			problems = append(problems, Problem{Key: at, Value: key.Value, Message: "given twice"})
			continue
		}
		seen[key.Value] = true
		read := nodeText
		if s.named() && node.Kind == yaml.MappingNode {
			read = mappingText
		}
		text, err := read(node)
		if err != nil {
			problems = append(problems, Problem{Key: at, Value: key.Value, Message: err.Error()})
			continue
		}
		if text != "" { // as with variables, empty is not set
			assignments = append(assignments, assignment{s, text, Source{Kind: "file", Name: at + ": " + key.Value}})
		}
	}
	return assignments, problems
}

// nodeText is a scalar as it is written, or a list of them with commas. Scalars aren't decoded by YAML's rules: yes
// stays yes, and 010 stays three digits, for the setting to read.
func nodeText(node *yaml.Node) (string, error) {
	switch {
	case node.Kind == yaml.AliasNode:
		return nodeText(node.Alias)
	case node.Tag == "!!null":
		return "", nil
	case node.Kind == yaml.ScalarNode:
		return node.Value, nil
	case node.Kind == yaml.SequenceNode:
		elements := make([]string, 0, len(node.Content))
		for _, element := range node.Content {
			if element.Kind != yaml.ScalarNode {
				return "", errors.New("a list of plain values is allowed")
			}
			elements = append(elements, element.Value)
		}
		return strings.Join(elements, ","), nil
	default:
		return "", errors.New("a plain value is allowed")
	}
}

// named reports whether the setting is a list of names and values, which a file may write as a mapping.
func (s *Setting) named() bool {
	switch s.value.(type) {
	case pairsValue, limitsValue:
		return true
	}
	return false
}

// mappingText is a mapping of plain values as a list key=value with commas.
func mappingText(node *yaml.Node) (string, error) {
	pairs := make(map[string]string, len(node.Content)/2)
	for i := 0; i+1 < len(node.Content); i += 2 {
		key := node.Content[i]
		text, err := nodeText(node.Content[i+1])
		if err != nil || key.Kind != yaml.ScalarNode {
			return "", errors.New("a mapping of plain values is allowed")
		}
		pairs[key.Value] = text
	}
	return formatPairs(pairs), nil
}

// position is where in the file something is; line 0 stands for the file as a whole.
func position(name string, line int) string {
	if line == 0 {
		return name
	}
	return fmt.Sprintf("%s:%d", name, line)
}

// keys lists what a file may set, for suggestions.
func (c *Config) keys() []string {
	keys := make([]string, 0, len(c.settings))
	for _, s := range c.settings {
		keys = append(keys, s.Key)
	}
	return keys
}

package config

import (
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Settings returns the table, in the order of the help text.
func (c *Config) Settings() []*Setting { return c.settings }

// Help is the text of --help: every flag with its meaning, variable and default, by group. Settings without effect are
// left out; IgnoredHelp has them.
func Help() string {
	var b strings.Builder
	group := ""
	// The default of a fresh Config, not the program's own: the text must not depend on where it is asked for.
	for _, s := range Default().settings {
		if s.Ignored != "" {
			continue
		}
		if s.Group != group {
			group = s.Group
			fmt.Fprintf(&b, "\n%s:\n", group)
		}
		fmt.Fprintf(&b, "  %s\n", s.usage())
		b.WriteString(wrap(s.Doc, "      ", 110))
		b.WriteString(wrap(s.facts(), "      ", 110))
	}
	return b.String()
}

// IgnoredHelp lists the flags that are accepted without effect, by reason.
func IgnoredHelp() string {
	var b strings.Builder
	var reasons []string
	flags := make(map[string][]string)
	for _, s := range Default().settings {
		if s.Ignored == "" {
			continue
		}
		if flags[s.Ignored] == nil {
			reasons = append(reasons, s.Ignored)
		}
		flags[s.Ignored] = append(flags[s.Ignored], "--"+s.Key)
	}
	// In the order of the table, each reason where it first appears.
	for _, reason := range reasons {
		fmt.Fprintf(&b, "  %s:\n", reason)
		b.WriteString(wrap(strings.Join(flags[reason], " "), "      ", 110))
	}
	return b.String()
}

// usage is the flag with the kind of its argument.
func (s *Setting) usage() string {
	if s.Switch() {
		return "--" + s.Key + ", --no-" + s.Key
	}
	return "--" + s.Key + " " + s.value.kind()
}

// facts is the line of the help text and of the file about where else the setting is found and what it is by default.
func (s *Setting) facts() string {
	facts := "$" + strings.Join(s.Env, ", $")
	if s.Default != "" {
		facts += "; default " + s.Default
	}
	return "(" + facts + ")"
}

// wrap breaks a text into lines of at most width, each with the indent. A word longer than the width has a line of its
// own.
func wrap(text, indent string, width int) string {
	var b strings.Builder
	line := indent
	for word := range strings.FieldsSeq(text) {
		if len(line)+1+len(word) > width && line != indent {
			b.WriteString(strings.TrimRight(line, " ") + "\n")
			line = indent
		}
		line += word + " "
	}
	b.WriteString(strings.TrimRight(line, " ") + "\n")
	return b.String()
}

// Example is configs/frontend.yaml: every key with its default and meaning, all commented out. It ends up in the
// repository, so it must be the same on every machine.
func Example() []byte {
	var b strings.Builder
	b.WriteString(`# Portico's frontend: every setting with its default. Remove the # before a key to change it, and start with
#
#     bin/frontend --config configs/frontend.yaml
#
# Each key is also a flag of the same name and an environment variable (in brackets). A flag wins over the environment,
# the environment over this file. This file is made from the program's own table: make configs.
`)
	group := ""
	for _, s := range Default().settings {
		if s.Group != group {
			group = s.Group
			fmt.Fprintf(&b, "\n# ── %s ──\n", group)
		}
		if s.Key == "config" {
			continue // a file can't name another
		}
		b.WriteString("\n")
		if s.Ignored != "" {
			b.WriteString(wrap(fmt.Sprintf("No effect: %s. ($%s)", s.Ignored, strings.Join(s.Env, ", $")), "# ", 118))
			fmt.Fprintf(&b, "# %s:\n", s.Key)
			continue
		}
		b.WriteString(wrap(s.Doc, "# ", 118))
		b.WriteString(wrap("Allowed: "+s.Allowed()+". ($"+strings.Join(s.Env, ", $")+")", "# ", 118))
		fmt.Fprintf(&b, "# %s: %s\n", s.Key, scalar(s.Default))
	}
	return []byte(b.String())
}

// Redacted is the configuration as YAML that Load would read, with secrets hidden and the source of each value that
// isn't a default. Hidden secrets would be read back as they are printed: the dump is for looking at, and for settings
// without any.
func (c *Config) Redacted() []byte {
	var b strings.Builder
	for _, s := range c.settings {
		if s.Ignored != "" || s.Key == "config" {
			continue
		}
		fmt.Fprintf(&b, "%s: %s", s.Key, scalar(s.Value()))
		if s.source.Name != "" {
			fmt.Fprintf(&b, " # %s", s.source.Name)
		}
		b.WriteString("\n")
	}
	return []byte(b.String())
}

// scalar writes a value as YAML would, quoted where it has to be.
func scalar(text string) string {
	if text == "" {
		return `""`
	}
	out, err := yaml.Marshal(&yaml.Node{Kind: yaml.ScalarNode, Value: text})
	if err != nil {
		return fmt.Sprintf("%q", text)
	}
	return strings.TrimSpace(string(out))
}

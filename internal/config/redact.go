package config

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// hidden stands for a secret wherever a value is printed.
const hidden = "(hidden)"

// metricName is what Prometheus takes as the beginning of a name.
var metricName = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)

// urlPath is a path that a request may have as it stands, without what marks a pattern of paths.
var urlPath = regexp.MustCompile(`^/[A-Za-z0-9\-._~!$&'()+,;=:@/]*$`)

// userinfo is the name and password in a URL, with or without a scheme, up to the last @ before the path.
var userinfo = regexp.MustCompile(`(://|^|,)[^/\s,]*@`)

// printable is a text for the setting, fit to be printed: secrets and what URLs have before their host are hidden. It
// is used for every value that leaves the package: dumps, messages and the help text.
func (s *Setting) printable(text string) string {
	switch {
	case s.Secret && text != "":
		return hidden
	case s.URL:
		return userinfo.ReplaceAllString(text, "${1}"+hidden+"@")
	default:
		return text
	}
}

// envName is a setting's name as part of a variable's. kv-cache becomes KV_CACHE between prefix and suffix.
func envName(prefix, name, suffix string) string {
	return prefix + strings.ToUpper(strings.ReplaceAll(name, "-", "_")) + suffix
}

// parsePairs reads a list key=value,key=value, percent-encoded. The form is that of OTEL_RESOURCE_ATTRIBUTES, after W3C
// baggage. Of equal keys the last one counts.
func parsePairs(s string) (map[string]string, error) {
	m := make(map[string]string)
	for pair := range strings.SplitSeq(s, ",") {
		if pair = strings.TrimSpace(pair); pair == "" {
			continue
		}
		key, text, ok := strings.Cut(pair, "=")
		if key = strings.TrimSpace(key); !ok || key == "" {
			return nil, errNotAllowed
		}
		decoded, err := url.PathUnescape(strings.TrimSpace(text))
		if err != nil {
			return nil, fmt.Errorf("value of %s: %w", key, err)
		}
		m[key] = decoded
	}
	return m, nil
}

// formatPairs is the inverse of parsePairs, sorted.
func formatPairs(m map[string]string) string {
	pairs := make([]string, 0, len(m))
	for key, text := range m {
		pairs = append(pairs, key+"="+url.PathEscape(text))
	}
	slices.Sort(pairs)
	return strings.Join(pairs, ",")
}

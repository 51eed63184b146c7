package file

import (
	"path/filepath"
	"strings"

	"github.com/portico-llm/portico/internal/router"
)

// tempPrefix marks files that are being written; they become records by a link or a rename.
const tempPrefix = ".tmp_"

// upperHex are the digits of escapes; Dynamo's writers use capitals, so names are the same from either.
const upperHex = "0123456789ABCDEF"

// encode returns the file name of a key within its bucket: every byte other than an ASCII letter or digit is escaped.
// The slashes between a key's parts are escaped too, so that a bucket is one flat folder.
func encode(key string) string {
	var b strings.Builder
	for i := range len(key) {
		c := key[i]
		if 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' {
			b.WriteByte(c)
			continue
		}
		b.WriteByte('%')
		b.WriteByte(upperHex[c>>4])
		b.WriteByte(upperHex[c&15])
	}
	return b.String()
}

// decode is the inverse of encode. It takes unescaped bytes as they are and hexadecimal digits of either case, but no
// hidden file: those are other people's temporary files and locks. ok is false for names that are no records; nothing
// is reported of them.
func decode(name string) (key string, ok bool) {
	if name == "" || name[0] == '.' {
		return "", false
	}
	if strings.IndexByte(name, '%') < 0 {
		return name, true
	}
	out := make([]byte, 0, len(name))
	for i := 0; i < len(name); i++ {
		if name[i] != '%' {
			out = append(out, name[i])
			continue
		}
		// An escape that is cut off, or with other digits, is nobody's record.
		if i+2 >= len(name) {
			return "", false
		}
		hi, lo := unhex(name[i+1]), unhex(name[i+2])
		if hi < 0 || lo < 0 {
			return "", false
		}
		out = append(out, byte(hi<<4|lo))
		i += 2
	}
	return string(out), true
}

// unhex returns a digit's value, -1 for what is no digit.
func unhex(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c && c <= 'f':
		return int(c-'a') + 10
	case 'A' <= c && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}

// path returns the file of a full key such as v1/instances/ns/comp/ep/1f. ok is false for keys in other buckets, and
// for a bucket itself.
func path(root, key string) (dir, name string, ok bool) {
	for _, bucket := range router.Buckets() {
		if rest, found := strings.CutPrefix(key, bucket+"/"); found && rest != "" {
			return filepath.Join(root, filepath.FromSlash(bucket)), encode(rest), true
		}
	}
	return "", "", false
}

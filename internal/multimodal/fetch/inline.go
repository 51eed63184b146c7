package fetch

import (
	"encoding/base64"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// mebibytes writes a bound for people.
func mebibytes(n int64) string {
	if n%(1<<20) == 0 {
		return strconv.FormatInt(n>>20, 10) + " MiB"
	}
	return strconv.FormatInt(n, 10) + " bytes"
}

// inline decodes a data URL. Clients write base64 in every alphabet, with and without padding, broken into lines and
// percent-encoded; all of it is read. The media type isn't looked at: the bytes say what they are.
func (f *Fetcher) inline(b *batch, raw string) ([]byte, error) {
	head, body, ok := strings.Cut(raw[len("data:"):], ",")
	if !ok {
		return nil, refuse("is a data URL without a comma")
	}
	isBase64 := false
	for _, param := range strings.Split(head, ";")[1:] {
		isBase64 = isBase64 || strings.EqualFold(strings.TrimSpace(param), "base64")
	}
	// Three bytes each four characters; checked before anything is decoded. A line break each 64 is allowed for.
	if int64(len(body))/4*3 > f.opts.MaxDataURL+f.opts.MaxDataURL/16 {
		return nil, refuse("holds more than %s", mebibytes(f.opts.MaxDataURL))
	}
	if strings.ContainsRune(body, '%') {
		// A plus is a character of base64, and no blank.
		plain, err := url.PathUnescape(body)
		if err != nil {
			return nil, refuse("is a data URL with a percent sign that stands for nothing")
		}
		body = plain
	}
	data := []byte(body)
	if isBase64 {
		var err error
		if data, err = decodeBase64(body); err != nil {
			return nil, refuse("is a data URL that is not base64")
		}
	}
	if int64(len(data)) > f.opts.MaxDataURL {
		return nil, refuse("holds more than %s", mebibytes(f.opts.MaxDataURL))
	}
	if !b.take(int64(len(data))) {
		return nil, f.tooMuch()
	}
	return whole(data)
}

// decodeBase64 decodes both alphabets, padded or not, with blanks and line breaks anywhere.
func decodeBase64(s string) ([]byte, error) {
	// What most clients send takes one pass and no copy.
	if data, err := base64.StdEncoding.DecodeString(s); err == nil {
		return data, nil
	}
	s = strings.Map(func(r rune) rune {
		switch r {
		case '-':
			return '+'
		case '_':
			return '/'
		case ' ', '\t', '\n', '\r', '\f':
			return -1
		}
		return r
	}, s)
	return base64.RawStdEncoding.DecodeString(strings.TrimRight(s, "="))
}

// local reads a file inside the configured folder. Neither dots nor links lead out of it, and only regular files are
// opened: a pipe would block, a device might never end.
func (f *Fetcher) local(b *batch, raw string) ([]byte, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Opaque != "" {
		return nil, refuse("is not a file URL with an absolute path")
	}
	if u.Host != "" && !strings.EqualFold(u.Host, "localhost") {
		return nil, refuse("is a file of another host")
	}
	path, err := filepath.Rel(f.root.Name(), filepath.Clean(u.Path))
	if err != nil || !filepath.IsLocal(path) {
		return nil, refuse("is a file outside the folder that is allowed here")
	}
	// Nobody is told which of the reasons it is: what exists in a folder may be nobody's business.
	file, err := f.root.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, refuse("is a file that can not be read").because(err)
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return nil, refuse("is a file that can not be read").because(err)
	}
	if info.Size() > f.opts.MaxBytes {
		return nil, f.tooLarge()
	}
	return f.read(b, file, info.Size())
}

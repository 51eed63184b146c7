package modelcard

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/zeebo/blake3"

	"github.com/portico-llm/portico/api/worker"
)

// Bounds on getting files.
const (
	connectTimeout  = 10 * time.Second  // to a server, TLS included
	downloadTimeout = 300 * time.Second // of one file
	maxFileSize     = 1 << 30           // of a file whose card gives no size
)

// newClient returns the client for downloads. Time-outs of whole requests are the caller's.
func newClient() *http.Client {
	dialer := &net.Dialer{Timeout: connectTimeout}
	return &http.Client{Transport: &http.Transport{
		DialContext: dialer.DialContext, TLSHandshakeTimeout: connectTimeout, Proxy: http.ProxyFromEnvironment,
		DisableKeepAlives: true, // a handful of files, once per model
	}}
}

// found is a file that was found and has the right sum. It exists only with the right sum: whoever holds one needs no
// further check.
type found struct {
	name  string // as the card gives it
	kind  string // worker.Kind…: how to read it
	local string // where it was read; empty when it was downloaded
	data  []byte // all of it; never written to
}

// opener finds the files of one card.
type opener struct {
	card *worker.Card // not changed
	opts Options      // with defaults
}

// open finds one of the card's files; nil when the card names none. The first place that has the file with the right
// sum counts. The error of a file that was found with another sum goes before the one of a file that wasn't found: it
// tells more.
func (o *opener) open(ctx context.Context, file *worker.CardFile) (*found, error) {
	if file.IsZero() {
		return nil, nil
	}
	// No file is taken without a sum: nothing else tells the right one.
	want, ok := strings.CutPrefix(file.File.Checksum, "blake3:")
	if !ok || len(want) != 64 {
		return nil, fmt.Errorf("model file %s: checksum %q isn't a BLAKE3 sum", file.File.Path, file.File.Checksum)
	}
	var wrong error
	places := o.places(file)
	for _, place := range places {
		// A place that lacks the file is passed over; one that has another file is remembered, should no place have the
		// right one.
		data, err := readLocal(place)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = check(data, want)
		}
		if err == nil {
			return &found{name: file.File.Path, kind: file.Kind, local: place, data: data}, nil
		}
		if wrong == nil {
			wrong = fmt.Errorf("model file %s: %w", place, err)
		}
	}
	if remote := file.File.Path; strings.HasPrefix(remote, "http://") || strings.HasPrefix(remote, "https://") {
		// Downloaded last: files on this machine cost nothing.
		data, err := o.download(ctx, &file.File)
		if err == nil {
			err = check(data, want)
		}
		if err != nil {
			return nil, fmt.Errorf("model file %s: %w", remote, err)
		}
		return &found{name: remote, kind: file.Kind, data: data}, nil
	}
	if wrong != nil {
		return nil, wrong
	}
	return nil, fmt.Errorf("model file %s: not found here, nor in %s", file.File.Path, strings.Join(places, ", "))
}

// places lists the local paths where a file may be, the likeliest first. Cards name files by path, by file, http or
// https URL, or as hf://ORG/NAME/FILE.
func (o *opener) places(file *worker.CardFile) []string {
	given := file.File.Path
	var places []string
	// base is all that other places are searched for: a path on a worker's machine means nothing here.
	base := path.Base(given)
	repo := o.card.SourcePath
	switch u, err := url.Parse(given); {
	case err == nil && (u.Scheme == "http" || u.Scheme == "https"):
		base = path.Base(u.Path)
	case err == nil && u.Scheme == "file":
		places = append(places, u.Path)
		base = path.Base(u.Path)
	// A reference into the hub names the repository itself.
	case strings.HasPrefix(given, "hf://"):
		repo, base = splitHub(strings.TrimPrefix(given, "hf://"))
	default:
		places = append(places, given)
	}
	// A custom template has an arbitrary name, under which another model's file may stand.
	if file.Custom || base == "." || base == "/" || base == ".." {
		return places
	}
	// The operator's folder goes before the cache: it was named on purpose.
	if o.opts.ModelPath != "" {
		places = append(places, filepath.Join(o.opts.ModelPath, base))
	}
	return append(places, o.cached(repo, base)...)
}

// splitHub splits org/name[@revision]/file. The revision is dropped: the sum decides. Without both parts of a
// repository's name there is no repository.
func splitHub(ref string) (repo, base string) {
	parts := strings.SplitN(ref, "/", 3)
	if len(parts) < 3 {
		return "", path.Base(ref)
	}
	name, _, _ := strings.Cut(parts[1], "@")
	return parts[0] + "/" + name, path.Base(parts[2])
}

// cached lists a repository's copies of a file in the hub cache. The sum tells which revision is meant. The layout is
// huggingface_hub's: models--ORG--NAME/snapshots/REVISION/FILE. Names come from the network, so nothing that could
// leave the cache or act as a pattern is looked up.
func (o *opener) cached(repo, base string) []string {
	if o.opts.HubCache == "" || repo == "" || filepath.IsAbs(repo) || strings.Count(repo, "/") > 1 ||
		strings.ContainsAny(repo, `*?[\`) || strings.Contains(repo, "..") {
		return nil
	}
	folder := "models--" + strings.ReplaceAll(repo, "/", "--")
	matches, err := filepath.Glob(filepath.Join(o.opts.HubCache, folder, "snapshots", "*", base))
	if err != nil {
		return nil
	}
	return matches
}

// readLocal reads a whole file; one that isn't there is fs.ErrNotExist. Cards name files, and the opening of a pipe would
// wait for its writer for ever.
func readLocal(place string) ([]byte, error) {
	info, err := os.Stat(place)
	if err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("not a file")
	}
	f, err := os.Open(place)
	if err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	defer f.Close()
	return readLimited(f, maxFileSize)
}

// readLimited reads all of r, or fails when there is more than limit.
func readLimited(r io.Reader, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, fmt.Errorf("read: %w", err)
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("larger than %d bytes", limit)
	}
	return data, nil
}

// check compares a file's sum with the card's, both in lower-case hexadecimal.
func check(data []byte, want string) error {
	sum := blake3.Sum256(data)
	if got := hex.EncodeToString(sum[:]); got != want {
		return fmt.Errorf("BLAKE3 sum is %s, the card says %s", got, want)
	}
	return nil
}

// download gets a file by its URL into memory. The size the card gives is a bound, the sum is checked by the caller.
func (o *opener) download(ctx context.Context, file *worker.CheckedFile) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, downloadTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, file.Path, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("request: %w", err)
	}
	resp, err := o.opts.Client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("download: %w", err)
	}
	defer resp.Body.Close()
	// Redirects have been followed by the client.
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("download: %s", resp.Status)
	}
	// Never more than the card's size, however much a server sends.
	limit := int64(maxFileSize)
	if file.Size != nil && *file.Size < maxFileSize {
		limit = int64(*file.Size)
	}
	data, err := readLimited(resp.Body, limit)
	if err != nil {
		return nil, fmt.Errorf("download: %w", err)
	}
	o.opts.Log.Info("model file downloaded", "url", file.Path, "bytes", len(data))
	return data, nil
}

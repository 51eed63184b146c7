package arch

import (
	"go/ast"
	"go/types"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const configPath = module + "/internal/config"

// unread are fields of the configuration that no program has to read.
var unread = map[string]string{
	"Config.File": "says where the rest came from",
}

// TestEverySettingIsRead: a setting that isn't marked as ignored has an effect, so cmd/frontend reads its field.
func TestEverySettingIsRead(t *testing.T) {
	if _, err := os.Stat(filepath.Join(root, "cmd/frontend/build.go")); err != nil {
		t.Skip("cmd/frontend/build.go isn't there yet, so nothing reads the configuration")
	}
	tr := source(t)
	importer := &looseImporter{known: make(map[string]*types.Package)}
	config, configInfo := check(tr, "internal/config", configPath, importer)
	importer.known[configPath] = config
	_, programInfo := check(tr, "cmd/frontend", module+"/cmd/frontend", importer)

	read := make(map[types.Object]bool)
	for _, s := range programInfo.Selections {
		read[s.Obj()] = true
	}
	// What a method of the configuration reads counts when the program calls the method.
	for _, f := range tr.product() {
		if f.dir != "internal/config" {
			continue
		}
		for _, decl := range f.ast.Decls {
			if d, ok := decl.(*ast.FuncDecl); ok && d.Recv != nil && read[configInfo.Defs[d.Name]] {
				ast.Inspect(d, func(n ast.Node) bool {
					if s, ok := n.(*ast.SelectorExpr); ok && configInfo.Selections[s] != nil {
						read[configInfo.Selections[s].Obj()] = true
					}
					return true
				})
			}
		}
	}
	seen := 0
	for _, name := range config.Scope().Names() {
		structure, ok := config.Scope().Lookup(name).Type().Underlying().(*types.Struct)
		if !ok || !holdsSettings(name) {
			continue
		}
		for field := range structure.Fields() {
			seen++
			if field.Exported() && !read[field] && unread[name+"."+field.Name()] == "" {
				t.Errorf("nothing in cmd/frontend reads config.%s.%s: use it, or say in the table that it has no effect", name,
					field.Name())
			}
		}
	}
	if seen < 40 {
		t.Errorf("only %d fields found", seen)
	}
}

// holdsSettings leaves out the types that are about settings rather than made of them.
func holdsSettings(name string) bool {
	switch name {
	case "Setting", "Source", "Warning", "Problem", "Error", "LogLevels":
		return false
	}
	return ast.IsExported(name)
}

// check type-checks one package without the packages it imports, which is enough to tell whose field is read where.
func check(tr *tree, dir, path string, importer types.Importer) (*types.Package, *types.Info) {
	info := &types.Info{Selections: make(map[*ast.SelectorExpr]*types.Selection), Defs: make(map[*ast.Ident]types.Object)}
	var files []*ast.File
	for _, f := range tr.product() {
		if f.dir == dir {
			files = append(files, f.ast)
		}
	}
	conf := types.Config{Importer: importer, Error: func(error) {}}
	pkg, _ := conf.Check(path, tr.fset, files, info) // names of absent packages don't resolve: expected
	return pkg, info
}

// looseImporter gives out empty packages for all but the known ones.
type looseImporter struct{ known map[string]*types.Package }

// Import implements types.Importer.
func (i *looseImporter) Import(path string) (*types.Package, error) {
	if i.known[path] == nil {
		i.known[path] = types.NewPackage(path, path[strings.LastIndexByte(path, '/')+1:])
		i.known[path].MarkComplete()
	}
	return i.known[path], nil
}

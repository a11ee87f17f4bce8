import java.util.HashMap;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.catalog.Catalog;
import org.apache.iceberg.catalog.CatalogTests;
import org.apache.iceberg.catalog.Namespace;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.rest.RESTCatalog;
import org.apache.iceberg.view.ViewCatalogTests;
import org.junit.jupiter.api.AfterEach;

/**
 * Iceberg's own tests of catalogs, run against the REST catalog at the system property `uri`. Locations that the tests
 * choose are below the system property `warehouse`.
 */
public class CatalogSuites {
  private static RESTCatalog open(String name, Map<String, String> more) {
    Map<String, String> properties = new HashMap<>(Map.of("uri", System.getProperty("uri")));
    properties.putAll(CATALOG_DEFAULTS);
    properties.putAll(more);
    RESTCatalog catalog = new RESTCatalog();
    catalog.setConf(new Configuration());
    catalog.initialize(name, properties);
    return catalog;
  }

  /** Defaults and overrides that CatalogTests and ViewCatalogTests expect of every catalog. */
  private static final Map<String, String> CATALOG_DEFAULTS =
      Map.of(
          "table-default.default-key1", "catalog-default-key1",
          "table-default.default-key2", "catalog-default-key2",
          "table-default.override-key3", "catalog-default-key3",
          "table-override.override-key3", "catalog-override-key3",
          "table-override.override-key4", "catalog-override-key4",
          "view-default.key1", "catalog-default-key1",
          "view-default.key2", "catalog-default-key2",
          "view-default.key3", "catalog-default-key3",
          "view-override.key3", "catalog-override-key3",
          "view-override.key4", "catalog-override-key4");

  private static void empty(RESTCatalog catalog) {
    for (Namespace namespace : catalog.listNamespaces()) {
      catalog.listTables(namespace).forEach(table -> catalog.dropTable(table, false));
      catalog.listViews(namespace).forEach(catalog::dropView);
      catalog.dropNamespace(namespace);
    }
  }

  public static class Tables extends CatalogTests<RESTCatalog> {
    private final RESTCatalog catalog = open("tables", Map.of());

    @AfterEach
    void end() throws Exception {
      empty(catalog);
      catalog.close();
    }

    @Override
    protected RESTCatalog catalog() {
      return catalog;
    }

    @Override
    protected String baseTableLocation(TableIdentifier table) {
      return System.getProperty("warehouse") + "/chosen/" + table.namespace() + "/" + table.name();
    }

    @Override
    protected RESTCatalog initCatalog(String name, Map<String, String> more) {
      return open(name, more);
    }

    @Override
    protected boolean requiresNamespaceCreate() {
      return true;
    }

    @Override
    protected boolean supportsServerSideRetry() {
      return true;
    }
  }

  public static class Views extends ViewCatalogTests<RESTCatalog> {
    private final RESTCatalog catalog = open("views", Map.of());

    @AfterEach
    void end() throws Exception {
      empty(catalog);
      catalog.close();
    }

    @Override
    protected RESTCatalog catalog() {
      return catalog;
    }

    @Override
    protected Catalog tableCatalog() {
      return catalog;
    }

    @Override
    protected boolean requiresNamespaceCreate() {
      return true;
    }

    @Override
    protected boolean supportsServerSideRetry() {
      return true;
    }
  }
}
